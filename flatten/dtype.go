package flatten

import "strconv"

// DType is the element type of an entry, as the triple of DLPack's DLDataType.
// goflat moves bytes and never looks inside an element, so any triple of a
// whole number of bytes works, also one that this package has no name for.
type DType struct {
	Code  uint8  // kind of number, one of the Code constants
	Bits  uint8  // bits of one lane
	Lanes uint16 // lanes of one element, 1 for everything but packed types
}

// Kinds of numbers: DLDataTypeCode of dlpack.h 1.1.
const (
	CodeInt uint8 = iota
	CodeUint
	CodeFloat
	CodeHandle
	CodeBfloat
	CodeComplex
	CodeBool
	CodeFloat8E3M4
	CodeFloat8E4M3
	CodeFloat8E4M3B11FNUZ
	CodeFloat8E4M3FN
	CodeFloat8E4M3FNUZ
	CodeFloat8E5M2
	CodeFloat8E5M2FNUZ
	CodeFloat8E8M0FNU
	CodeFloat6E2M3FN
	CodeFloat6E3M2FN
	CodeFloat4E2M1FN
)

// codeNames has one name per Code; those that end in a digit-free word take
// their bits behind it ("int" becomes "int32"), see sized.
var codeNames = [...]string{
	"int", "uint", "float", "handle", "bfloat", "complex", "bool",
	"float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
	"float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn",
}

// ElemBytes is the size of one element in bytes, all lanes together, rounded up.
func (t DType) ElemBytes() int64 {
	return (int64(t.Bits)*int64(t.Lanes) + 7) / 8
}

// String is the name NumPy and torch use: "float32", "bfloat16", "bool",
// "float8_e4m3fn", with "_x2" behind it for two lanes.
func (t DType) String() string {
	name := t.laneName()
	if t.Lanes != 1 {
		name += "_x" + strconv.Itoa(int(t.Lanes))
	}
	return name
}

func (t DType) laneName() string {
	bits := strconv.Itoa(int(t.Bits))
	switch {
	case int(t.Code) >= len(codeNames):
		return "code" + strconv.Itoa(int(t.Code)) + "_" + bits
	case t.Code == CodeBool && t.Bits == 8, t.Code >= CodeFloat8E3M4:
		return codeNames[t.Code]
	default:
		return codeNames[t.Code] + bits
	}
}
