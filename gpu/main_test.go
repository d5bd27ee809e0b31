package gpu_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/fakecuda"
)

// What the tests run on, set by the environment: the fake driver, or the installed one
// if GOFLAT_REQUIRE_GPU=1.
var onFake = os.Getenv("GOFLAT_REQUIRE_GPU") != "1"

// childEnv names the test that a test binary runs as a child process with a driver
// prepared by its environment; see runChild.
const childEnv = "GOFLAT_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "available":
		fmt.Println(gpu.Available())
		return
	case "held":
		fmt.Println(gpu.Held(0), driverIsMapped())
		return
	}
	if onFake {
		if err := loadFake(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// loadFake builds the fake driver if need be and loads it into this process.
func loadFake() error {
	if out, err := exec.Command("make", "-s", "-C", "fakecuda").CombinedOutput(); err != nil {
		return fmt.Errorf("build the fake driver: %w\n%s", err, out)
	}
	path, err := filepath.Abs("fakecuda/build/libcuda.so.1")
	if err != nil {
		return err
	}
	return fakecuda.Load(path)
}

// driverIsMapped reports whether this process has a libcuda.so.1.
func driverIsMapped() bool {
	maps, err := os.ReadFile("/proc/self/maps")
	return err != nil || strings.Contains(string(maps), "libcuda.so")
}

// fakeOnly skips a test of what only the fake driver can do.
func fakeOnly(t *testing.T) {
	t.Helper()
	if !onFake {
		t.Skip("needs the fake driver")
	}
}
