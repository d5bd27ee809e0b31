package flatten

import "testing"

func TestDType(t *testing.T) {
	tests := []struct {
		dtype DType
		name  string
		bytes int64
	}{
		{DType{CodeFloat, 16, 1}, "float16", 2},
		{DType{CodeFloat, 32, 1}, "float32", 4},
		{DType{CodeFloat, 64, 1}, "float64", 8},
		{DType{CodeBfloat, 16, 1}, "bfloat16", 2},
		{DType{CodeInt, 8, 1}, "int8", 1},
		{DType{CodeInt, 64, 1}, "int64", 8},
		{DType{CodeUint, 16, 1}, "uint16", 2},
		{DType{CodeUint, 64, 1}, "uint64", 8},
		{DType{CodeBool, 8, 1}, "bool", 1},
		{DType{CodeBool, 1, 1}, "bool1", 1},
		{DType{CodeComplex, 32, 1}, "complex32", 4},
		{DType{CodeComplex, 128, 1}, "complex128", 16},
		{DType{CodeFloat8E4M3FN, 8, 1}, "float8_e4m3fn", 1},
		{DType{CodeFloat8E4M3FNUZ, 8, 1}, "float8_e4m3fnuz", 1},
		{DType{CodeFloat8E5M2, 8, 1}, "float8_e5m2", 1},
		{DType{CodeFloat8E5M2FNUZ, 8, 1}, "float8_e5m2fnuz", 1},
		{DType{CodeFloat8E8M0FNU, 8, 1}, "float8_e8m0fnu", 1},
		{DType{CodeFloat4E2M1FN, 4, 2}, "float4_e2m1fn_x2", 1},
		{DType{CodeFloat6E3M2FN, 6, 4}, "float6_e3m2fn_x4", 3},
		{DType{CodeUint, 8, 3}, "uint8_x3", 3},
		{DType{CodeHandle, 64, 1}, "handle64", 8},
		{DType{99, 255, 65535}, "code99_255_x65535", 2088929},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.dtype.String(); got != tt.name {
				t.Errorf("name: got %s, want %s", got, tt.name)
			}
			if got := tt.dtype.ElemBytes(); got != tt.bytes {
				t.Errorf("bytes: got %d, want %d", got, tt.bytes)
			}
		})
	}
}

func TestDevice(t *testing.T) {
	for want, d := range map[string]Device{
		"cpu": {DeviceCPU, 0}, "cpu:1": {DeviceCPU, 1}, "cuda:0": {DeviceCUDA, 0}, "cuda:7": {DeviceCUDA, 7}, "device99:2": {99, 2},
	} {
		if got := d.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
