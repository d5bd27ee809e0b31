package flatten

import (
	"math"
	"testing"
)

func TestFloatOf(t *testing.T) {
	for f := range NumFloats {
		if got, ok := FloatOf(f.DType()); !ok || got != f {
			t.Errorf("%v: got %v, %v", f, got, ok)
		}
	}
	for _, d := range []DType{{CodeInt, 32, 1}, {CodeFloat, 32, 2}, {CodeFloat8E4M3FNUZ, 8, 1}} {
		if f, ok := FloatOf(d); ok {
			t.Errorf("%v: got %v, want none", d, f)
		}
	}
}

func TestConvert(t *testing.T) {
	single := func(v float32) uint64 { return uint64(math.Float32bits(v)) }
	double := math.Float64bits
	tests := []struct {
		name       string
		to, from   Float
		code, want uint64
		rules      Rules
	}{
		{"one", Float16, Float32, single(1), 0x3c00, 0},
		{"minus zero", Float8E5M2, Float32, single(float32(math.Copysign(0, -1))), 0x80, 0},
		{"a tie goes to even", BFloat16, Float32, 0x3f808000, 0x3f80, 0x7fff},
		{"a tie goes up to even", BFloat16, Float32, 0x3f818000, 0x3f82, 0x7fff},
		{"above a tie", BFloat16, Float32, 0x3f808001, 0x3f81, 0x7fff},
		{"a subnormal half", Float16, Float32, single(0x1p-24), 1, 0},
		{"half of it", Float16, Float32, single(0x1p-25), 0, 0},
		{"the largest half", Float16, Float32, single(65519), 0x7bff, 0},
		{"too large for a half", Float16, Float32, single(65520), 0x7c00, 0},
		{"a float64 rounds twice", Float16, Float64, double(1 + 0x1p-11 + 0x1p-40), 0x3c00, 0},
		{"e4m3", Float8E4M3FN, Float16, 0x5f00, 0x7e, 0x7f}, // 448
		{"a tie at the largest e4m3", Float8E4M3FN, Float32, single(464), 0x7e, 0x7f},
		{"too large for e4m3", Float8E4M3FN, Float32, single(-465), 0xff, 0x7f},
		{"too large for e4m3, kept", Float8E4M3FN, Float32, single(-465), 0xfe, 0x7e},
		{"infinity to e4m3, kept", Float8E4M3FN, Float32, 0x7f800000, 0x7e, 0x7e},
		{"a subnormal e4m3", Float8E4M3FN, Float32, single(3 * 0x1p-9), 3, 0x7f},
		{"infinity to e5m2", Float8E5M2, BFloat16, 0x7f80, 0x7c, 0},
		{"too large for e5m2", Float8E5M2, Float32, single(61441), 0x7c, 0},
		{"from e5m2", Float32, Float8E5M2, 1, single(0x1p-16), 0},
		{"from e4m3", Float64, Float8E4M3FN, 0x81, double(-0x1p-9), 0},
		{"NaN to bfloat16", BFloat16, Float32, 0xff800001, 0x7fc0, 0x7fc0},
		{"NaN to e5m2", Float8E5M2, Float32, 0xff800001, 0xff, 0},
		{"a NaN keeps its code in its type", Float16, Float16, 0xfe01, 0xfe01, 0},
	}
	for _, tt := range tests {
		if got := Convert(tt.to, tt.from, tt.code, tt.rules); got != tt.want {
			t.Errorf("%s: %v %#x to %v: got %#x, want %#x", tt.name, tt.from, tt.code, tt.to, got, tt.want)
		}
	}
}

// Numbers that both types have come back.
func TestConvertThereAndBack(t *testing.T) {
	for wide := range NumFloats {
		for narrow := Float16; narrow < NumFloats; narrow++ {
			if floats[wide].fraction < floats[narrow].fraction || floats[wide].bias < floats[narrow].bias {
				continue
			}
			for code := range uint64(1) << (8 * narrow.Bytes()) {
				if v := narrow.decode(code); v != v {
					continue
				}
				there := Convert(wide, narrow, code, 0x7fff)
				if back := Convert(narrow, wide, there, 0x7e); back != code {
					t.Fatalf("%v %#x to %v %#x and back: got %#x", narrow, code, wide, there, back)
				}
			}
		}
	}
}

func TestApplyCast(t *testing.T) {
	entry := Entry{View: View{Shape: []int64{3, 2}, Strides: []int64{2, 6}}, DType: Float16.DType()} // transposed
	single := Entry{View: View{Shape: []int64{1, 2}}, DType: Float32.DType()}
	entries := []Entry{entry.InElements(), single.InElements()}
	l, err := NewLayout(nil, 1, entries, 0)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := NewPlan(l, entries, nil)
	if err != nil {
		t.Fatal(err)
	}
	halves := []byte{0, 0x3c, 0, 0x40, 0, 0x42, 0, 0x44, 0, 0x45, 0, 0x46} // 1 to 6
	dst := [][]byte{make([]byte, 8)}
	cast := &Cast{Plan: plan, To: Float8E5M2, From: []Float{Float16, Float32}}
	ApplyCast(dst, [][]byte{halves, {0, 0, 0x80, 0x3f, 0, 0, 0, 0x40}}, cast)
	if got, want := string(dst[0]), "\x3c\x44\x40\x45\x42\x46\x3c\x40"; got != want {
		t.Errorf("got %x, want %x", got, want)
	}
}
