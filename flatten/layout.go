package flatten

import "strconv"

// Layout describes all entries of a job: what would be concatenated with what.
// It holds no memory and no addresses, so it can be kept, compared and written
// down. NewLayout makes a checked one; a caller that has checked its entries
// itself may write the literal, and Build and BuildPlain then check only what
// could make a plan wrong.
//
// Entry (k, b), of key k and batch b, has index k*Batches+b everywhere.
type Layout struct {
	Keys     []string // labels for messages, nil or one per key; without them key 3 is "#3"
	NumKeys  int
	Batches  int
	Dim      int      // the dim that is concatenated, 0 <= Dim <= len(RowShape)
	RowShape []int64  // extents of all other dims, shared by all entries
	Rows     []int64  // extent of Dim of each entry, NumKeys*Batches of them
	Legacy   []bool   // which entries have the shape (0,) that torch.cat skips; nil when none has
	DType    DType    // shared by all entries
	Devices  []Device // one per batch, or nil where nobody asks
}

// Name is the label of key k for messages.
func (l *Layout) Name(k int) string {
	if k < len(l.Keys) {
		return l.Keys[k]
	}
	return "#" + strconv.Itoa(k)
}

// RowBytes is the size of one row in bytes.
func (l *Layout) RowBytes() int64 {
	n, _ := product(l.RowShape, l.DType.ElemBytes())
	return n
}

// BatchRows is the number of rows of output b.
func (l *Layout) BatchRows(b int) int64 {
	var rows int64
	for e := b; e < len(l.Rows); e += l.Batches {
		rows += l.Rows[e]
	}
	return rows
}

// BatchBytes is the size of output b in bytes.
func (l *Layout) BatchBytes(b int) int64 {
	return l.BatchRows(b) * l.RowBytes()
}

// Bytes is the size of all outputs together in bytes.
func (l *Layout) Bytes() int64 {
	var rows int64
	for _, n := range l.Rows {
		rows += n
	}
	return rows * l.RowBytes()
}

// Offsets are the NumKeys+1 row offsets of output b: key k has the rows from
// Offsets(b)[k] up to Offsets(b)[k+1]. The caller owns the slice.
func (l *Layout) Offsets(b int) []int64 {
	return l.AppendOffsets(make([]int64, 0, l.NumKeys+1), b)
}

// AppendOffsets appends Offsets(b) to dst, which allocates only if dst is too short.
func (l *Layout) AppendOffsets(dst []int64, b int) []int64 {
	var row int64
	dst = append(dst, row)
	for e := b; e < len(l.Rows); e += l.Batches {
		row += l.Rows[e]
		dst = append(dst, row)
	}
	return dst
}

// OutShape is the shape of output b: that of its entries with their rows added
// up, or (0,) for a batch of legacy entries only. The caller owns the slice.
func (l *Layout) OutShape(b int) []int64 {
	if l.legacyBatch(b) {
		return []int64{0}
	}
	return l.shape(l.BatchRows(b))
}

// EntryShape is the shape of the entry of key k and batch b. The caller owns the slice.
func (l *Layout) EntryShape(k, b int) []int64 {
	e := k*l.Batches + b
	if l.legacy(e) {
		return []int64{0}
	}
	return l.shape(l.Rows[e])
}

// shape is RowShape with rows put in at Dim.
func (l *Layout) shape(rows int64) []int64 {
	shape := make([]int64, 0, len(l.RowShape)+1)
	shape = append(shape, l.RowShape[:l.Dim]...)
	shape = append(shape, rows)
	return append(shape, l.RowShape[l.Dim:]...)
}

// legacy reports whether entry e has the shape (0,) in a job of more dims.
func (l *Layout) legacy(e int) bool {
	return l.Legacy != nil && l.Legacy[e]
}

// legacyBatch reports whether batch b has legacy entries only.
func (l *Layout) legacyBatch(b int) bool {
	if l.Legacy == nil {
		return false
	}
	for e := b; e < len(l.Legacy); e += l.Batches {
		if !l.Legacy[e] {
			return false
		}
	}
	return true
}
