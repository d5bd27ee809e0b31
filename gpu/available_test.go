package gpu

import (
	"errors"
	"strings"
	"testing"

	"github.com/goflat/goflat/gpu/internal/libcuda"
)

func TestExplain(t *testing.T) {
	env := func(value string, set bool) lookupEnv {
		return func(string) (string, bool) { return value, set }
	}
	failed := func(code int, name string) *libcuda.OpenError {
		return &libcuda.OpenError{Stage: libcuda.InitFailed, Code: code, Detail: name}
	}
	tests := []struct {
		name   string
		failed *libcuda.OpenError
		env    lookupEnv
		want   []string
	}{
		{
			"no driver", &libcuda.OpenError{Stage: libcuda.NoLibrary, Detail: "cannot open shared object file"},
			env("", false),
			[]string{"cannot open shared object file", "install the NVIDIA driver", "--gpus all"},
		},
		{
			"another library of that name", &libcuda.OpenError{Stage: libcuda.NotCUDA},
			env("", false),
			[]string{"no cuInit", "library path"},
		},
		{"old driver", failed(35, ""), env("", false), []string{"35 (unknown error)", "update", minDriverRelease}},
		{"stub library", failed(34, "CUDA_ERROR_STUB_LIBRARY"), env("", false), []string{"LD_LIBRARY_PATH"}},
		{"no device", failed(100, "CUDA_ERROR_NO_DEVICE"), env("", false), []string{"100 (CUDA_ERROR_NO_DEVICE)", "nvidia-smi"}},
		{"devices hidden", failed(100, "CUDA_ERROR_NO_DEVICE"), env("", true), []string{`CUDA_VISIBLE_DEVICES=""`, "unset"}},
		{"devices hidden by -1", failed(100, "CUDA_ERROR_NO_DEVICE"), env("-1", true), []string{`CUDA_VISIBLE_DEVICES="-1"`}},
		{"a device is named", failed(100, "CUDA_ERROR_NO_DEVICE"), env("7", true), []string{"nvidia-smi"}},
		{"unknown", failed(999, "CUDA_ERROR_UNKNOWN"), env("", false), []string{"999 (CUDA_ERROR_UNKNOWN)", "nvidia-uvm"}},
		{"version mismatch", failed(803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), env("", false), []string{"reboot"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := error(explain(tt.failed, tt.env))
			if !errors.Is(err, ErrNoDevice) {
				t.Errorf("got %v, want it to be ErrNoDevice", err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want it to contain %q", err, want)
				}
			}
		})
	}
}

func TestCheckVersion(t *testing.T) {
	tests := []struct {
		version int
		ok      bool
	}{{11080, false}, {12000, false}, {12010, true}, {13000, true}}
	for _, tt := range tests {
		if err := checkVersion(tt.version); (err == nil) != tt.ok {
			t.Errorf("checkVersion(%d): got %v, want nil: %v", tt.version, err, tt.ok)
		}
	}
}

func TestErrorText(t *testing.T) {
	tests := []struct {
		err  *Error
		want string
	}{
		{
			&Error{Call: "cuLaunchKernel", Code: 1, Name: "CUDA_ERROR_INVALID_VALUE", Text: "invalid argument"},
			"[cuLaunchKernel][CUDA_ERROR_INVALID_VALUE] invalid argument",
		},
		{&Error{Call: "cuMemAlloc", Code: 12345}, "[cuMemAlloc][12345] unknown error"},
	}
	for _, tt := range tests {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
	if err := error(&Error{Code: 2}); !errors.Is(err, ErrOutOfMemory) {
		t.Errorf("%v is not ErrOutOfMemory", err)
	}
}
