package gpu_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Each answer of Available lasts for a process, so each case is one.
func TestAvailable(t *testing.T) {
	fakeOnly(t)
	fake, err := filepath.Abs("fakecuda/build")
	if err != nil {
		t.Fatal(err)
	}
	library := "LD_LIBRARY_PATH=" + fake
	tests := []struct {
		name string
		env  []string
		want string
	}{
		{"a driver", []string{library}, "<nil>"},
		{"no driver", []string{"LD_LIBRARY_PATH="}, "install the NVIDIA driver"},
		{"no device", []string{library, "FAKECUDA_FAIL=cuInit:1:100"}, "cuInit returned 100 (CUDA_ERROR_NO_DEVICE): check that nvidia-smi"},
		{"devices hidden", []string{library, "CUDA_VISIBLE_DEVICES="}, `CUDA_VISIBLE_DEVICES="" hides every device`},
		{"old driver", []string{library, "FAKECUDA_FAIL=cuInit:1:35"}, "cuInit returned 35 (unknown error): update the NVIDIA driver to R530"},
		{"broken driver", []string{library, "FAKECUDA_FAIL=cuInit:1:999"}, "cuInit returned 999 (CUDA_ERROR_UNKNOWN): check that nvidia-smi works"},
		{"driver for CUDA 12.0", []string{library, "FAKECUDA_DRIVER_VERSION=12000"}, "supports CUDA 12.0, goflat needs 12.1"},
		{"version unknown", []string{library, "FAKECUDA_FAIL=cuDriverGetVersion:1:1"}, "[cuDriverGetVersion][CUDA_ERROR_INVALID_VALUE]"},
		{"devices unknown", []string{library, "FAKECUDA_FAIL=cuDeviceGetCount:1:3"}, "[cuDeviceGetCount][CUDA_ERROR_NOT_INITIALIZED]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := runChild(t, "available", tt.env...)
			if !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want it to contain %q", got, tt.want)
			}
		})
	}
}

// runChild runs this test binary as the named child, see TestMain, and returns what it prints.
func runChild(t *testing.T, child string, env ...string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(append(os.Environ(), childEnv+"="+child), env...)
	return run(t, cmd)
}
