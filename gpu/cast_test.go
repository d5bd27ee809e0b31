package gpu_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/goflat/goflat/flatten"
	"github.com/goflat/goflat/gpu"
	"github.com/goflat/goflat/gpu/fakecuda"
	"github.com/goflat/goflat/gpu/internal/launch"
	"github.com/goflat/goflat/gpu/internal/randjob"
)

// A castTask is a cast and its memory.
type castTask struct {
	cast     *flatten.Cast
	dst, src []buffer
}

// rulesOf returns rules for a type as devices and releases of torch have them.
func rulesOf(r *rand.Rand, to flatten.Float) flatten.Rules {
	switch to {
	case flatten.BFloat16:
		return []flatten.Rules{0x7fff, 0x7fc0}[r.IntN(2)]
	case flatten.Float8E4M3FN:
		return []flatten.Rules{0x7f, 0x7e}[r.IntN(2)]
	}
	return 0
}

// newCastTask makes memory for a plan in elements. from says the type of an entry, align at which
// element after a multiple of 256 bytes a buffer begins.
func newCastTask(r *rand.Rand, j *randjob.Job, to flatten.Float, from func() flatten.Float, align func() int) *castTask {
	l := j.Plan.Layout
	k := &castTask{cast: &flatten.Cast{Plan: j.Plan, To: to, Rules: rulesOf(r, to)}}
	for b := range l.Batches {
		n := l.BatchBytes(b)
		if j.Outs != nil {
			lo, hi := j.Outs[b].Span(1)
			n = hi - lo
		}
		k.dst = append(k.dst, newBuffer(r, n*to.Bytes(), align()*int(to.Bytes()), 32*r.IntN(2)))
	}
	for e := range l.Rows {
		n, f := l.Rows[e]*l.RowBytes(), from()
		if j.Entries != nil {
			lo, hi := j.Entries[e].Span(1)
			n = hi - lo
		}
		k.cast.From = append(k.cast.From, f)
		buffer := newBuffer(r, n*f.Bytes(), align()*int(f.Bytes()), 32*r.IntN(2))
		fillWithNumbers(r, buffer.payload(), f)
		k.src = append(k.src, buffer)
	}
	return k
}

// fillWithNumbers writes numbers of a type: random codes, or such as lie near what types of fewer
// bits have.
func fillWithNumbers(r *rand.Rand, memory []byte, f flatten.Float) {
	if r.IntN(3) == 0 {
		return // random bytes are codes too
	}
	for at := int64(0); at < int64(len(memory)); at += f.Bytes() {
		small := flatten.Float(r.IntN(int(flatten.NumFloats)))
		code := flatten.Convert(f, small, r.Uint64()&(1<<(8*small.Bytes())-1), rulesOf(r, f))
		if r.IntN(2) == 0 {
			code += uint64(r.IntN(5)) - 2
		}
		var bytes [8]byte
		binary.LittleEndian.PutUint64(bytes[:], code)
		copy(memory[at:at+f.Bytes()], bytes[:])
	}
}

// plainCast is a task of contiguous entries that one job converts.
func plainCast(t *testing.T, r *rand.Rand, batches int, rows []int64, row int64, to flatten.Float, from func() flatten.Float, align func() int) *castTask {
	t.Helper()
	k := plainTask(t, r, batches, rows, row, aligned, 0)
	return newCastTask(r, &randjob.Job{Plan: k.plan}, to, from, align)
}

// verifyCast runs a task and compares all memory, guards and entries included.
func verifyCast(t *testing.T, cast caster, k *castTask) {
	t.Helper()
	b := onDevice(t, 0)
	want, dst, src := make([]buffer, len(k.dst)), make([][]byte, len(k.dst)), make([][]byte, len(k.src))
	for i := range k.dst {
		want[i] = k.dst[i]
		want[i].all = slices.Clone(k.dst[i].all)
		dst[i] = want[i].payload()
	}
	inputs := make([][]byte, len(k.src))
	for e := range k.src {
		inputs[e], src[e] = slices.Clone(k.src[e].all), k.src[e].payload()
	}
	flatten.ApplyCast(dst, src, k.cast)
	dstAt, srcAt := b.placeAll(k.dst), b.placeAll(k.src)
	b.must(cast(b.stream, k.cast, payloads(k.dst, dstAt), payloads(k.src, srcAt)))
	b.wait()
	b.readAll(k.dst, dstAt)
	b.readAll(k.src, srcAt)
	for i := range want {
		if at := firstDifference(k.dst[i].all, want[i].all); at >= 0 {
			from := at / int(k.cast.To.Bytes()) * int(k.cast.To.Bytes())
			t.Fatalf("to %v, output %d, byte %d of %d: got %x, want %x", k.cast.To, i, at-want[i].lo, want[i].hi-want[i].lo,
				k.dst[i].all[from:from+int(k.cast.To.Bytes())], want[i].all[from:from+int(k.cast.To.Bytes())])
		}
	}
	for e := range inputs {
		if !slices.Equal(k.src[e].all, inputs[e]) {
			t.Fatalf("entry %d changed", e)
		}
	}
}

// A caster is gpu.Cast on a device, or something that should do the same.
type caster func(stream uintptr, cast *flatten.Cast, dst, src []uintptr) error

func castOnFirst(stream uintptr, cast *flatten.Cast, dst, src []uintptr) error {
	return gpu.Cast(0, stream, cast, dst, src)
}

func preparedCast(stream uintptr, cast *flatten.Cast, dst, src []uintptr) error {
	p, err := gpu.PrepareCast(0, cast, dst, src)
	if err != nil {
		return err
	}
	return p.Launch(stream)
}

func only(f flatten.Float) func() flatten.Float { return func() flatten.Float { return f } }

func TestConformanceCast(t *testing.T) {
	if onFake {
		fakecuda.Reset()
	}
	conformCast(t, castOnFirst)
	if onFake {
		log := fakecuda.Log()
		for pair := range flatten.NumFloats * flatten.NumFloats {
			for _, large := range []bool{false, true} {
				k := launch.CastKernel{From: pair / flatten.NumFloats, To: pair % flatten.NumFloats, Large: large}
				if !slices.ContainsFunc(log, func(call string) bool { return strings.Contains(call, k.String()) }) {
					t.Errorf("%v was not launched", k)
				}
			}
		}
	}
}

func TestPreparedCast(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	k := plainCast(t, r, 4, slices.Repeat([]int64{1}, 700), 61, flatten.Float16, only(flatten.Float32), aligned)
	verifyCast(t, preparedCast, k)
}

// conformCast is the suite.
func conformCast(t *testing.T, cast caster) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	anyhow := func() int { return r.IntN(32) }
	anyOf := func() flatten.Float { return flatten.Float(r.IntN(int(flatten.NumFloats))) }

	t.Run("random", func(t *testing.T) {
		for range 100 {
			j, err := randjob.NewOf(r, 8)
			if err != nil {
				t.Fatal(err)
			}
			j.Plan.Layout.Devices = nil
			from := anyOf
			if r.IntN(2) == 0 {
				from = only(anyOf())
			}
			verifyCast(t, cast, newCastTask(r, j, anyOf(), from, anyhow))
		}
	})
	for to := range flatten.NumFloats {
		t.Run(fmt.Sprint("to ", to), func(t *testing.T) {
			for from := range flatten.NumFloats {
				for at := range 16 { // as a key each: neighbours of every length, at every distance from a vector
					n := []int64{1, 15, 17, 130, 600, int64(r.IntN(40))}
					verifyCast(t, cast, plainCast(t, r, 1, n, 1, to, only(from), func() int { return (at + r.IntN(2)) % 16 }))
				}
				verifyCast(t, cast, plainCast(t, r, 2, []int64{1201, 999, 1003, 655}, 7, to, only(from), aligned))
			}
			verifyCast(t, cast, plainCast(t, r, 4, slices.Repeat([]int64{1}, 2800), 61, to, anyOf, anyhow))
			verifyCast(t, cast, plainCast(t, r, 1, append(slices.Repeat([]int64{1}, 300), 9000), 11, to, only(anyOf()), anyhow))
		})
	}
	t.Run("every code", func(t *testing.T) {
		for from := flatten.Float16; from < flatten.NumFloats; from++ {
			for to := range flatten.NumFloats {
				verifyCast(t, cast, everyCode(t, r, to, from))
			}
		}
	})
	t.Run("dim 1", func(t *testing.T) {
		for _, inner := range []int64{1, 7, 49, 300} {
			k := dimTask(t, r, []int64{3, 0, 5, 2, 1, 7}, inner, aligned)
			l := k.plan.Layout.InElements()
			if err := k.plan.BuildPlain(l); err != nil {
				t.Fatal(err)
			}
			for to := range flatten.NumFloats {
				verifyCast(t, cast, newCastTask(r, &randjob.Job{Plan: k.plan}, to, anyOf, anyhow))
			}
		}
	})
	t.Run("nothing", func(t *testing.T) {
		verifyCast(t, cast, plainCast(t, r, 4, make([]int64, 8), 4, flatten.Float32, anyOf, aligned))
	})
}

// everyCode is a task of all codes of a type of 16 or 8 bits.
func everyCode(t *testing.T, r *rand.Rand, to, from flatten.Float) *castTask {
	t.Helper()
	n := int64(1) << (8 * from.Bytes())
	k := plainCast(t, r, 1, []int64{n}, 1, to, only(from), aligned)
	for code := range n {
		memory := k.src[0].payload()[code*from.Bytes():]
		memory[0] = byte(code)
		if from.Bytes() == 2 {
			memory[1] = byte(code >> 8)
		}
	}
	return k
}

// smallCast is a task of entries of three types.
func smallCast(t *testing.T) (b *bench, cast *flatten.Cast, dst, src []uintptr) {
	b = onDevice(t, 0)
	plan := plainTask(t, rand.New(rand.NewPCG(0, 0)), 2, []int64{3, 2, 1, 4}, 16, aligned, 0).plan
	at := b.alloc(make([]byte, 4096))
	from := []flatten.Float{flatten.Float32, flatten.Float16, flatten.Float32, flatten.Float64}
	return b, &flatten.Cast{Plan: plan, To: flatten.BFloat16, From: from, Rules: 0x7fff},
		[]uintptr{at, at + 512}, []uintptr{at + 1024, at + 1536, at + 2048, at + 3072}
}

func TestCastLaunchesOnceForATypeOfSources(t *testing.T) {
	fakeOnly(t)
	b, cast, dst, src := smallCast(t)
	b.must(gpu.Cast(0, b.stream, cast, dst, src))
	fakecuda.Reset()
	b.must(gpu.Cast(0, b.stream, cast, dst, src))
	launches := slices.DeleteFunc(fakecuda.Log(), func(call string) bool { return !strings.HasPrefix(call, "cuLaunch") })
	if len(launches) != 3 {
		t.Errorf("got %v, want three launches", launches)
	}
	b.wait()
}

func TestCastAllocatesNothing(t *testing.T) {
	b, cast, dst, src := smallCast(t)
	if n := testing.AllocsPerRun(20, func() { b.must(gpu.Cast(0, b.stream, cast, dst, src)) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
	b.wait()
}

func TestCastRefuses(t *testing.T) {
	b, cast, dst, src := smallCast(t)
	tests := []struct {
		name     string
		device   int
		dst, src []uintptr
		want     error
		text     string
	}{
		{"no such device", 99, dst, src, gpu.ErrNoDevice, "there is no device 99"},
		{"too few outputs", 0, dst[1:], src, nil, "got 1 output and 4 entry addresses and 4 types, want 2, 4 and 4"},
		{"an output between elements", 0, []uintptr{dst[0] + 1, dst[1]}, src, gpu.ErrMisaligned, ""},
		{"an entry between elements", 0, dst, []uintptr{src[0], src[1], src[2], src[3] + 4}, gpu.ErrMisaligned, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, prepared := gpu.PrepareCast(tt.device, cast, tt.dst, tt.src)
			for _, err := range []error{prepared, gpu.Cast(tt.device, b.stream, cast, tt.dst, tt.src)} {
				if err == nil || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("got %v, want %v %s", err, tt.want, tt.text)
				}
			}
		})
	}
}
