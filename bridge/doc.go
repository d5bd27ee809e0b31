// Package bridge is goflat's surface for Python: the free functions that gopy turns into the extension
// goflat._core, and the C collector behind them.
//
// One call of Flatten is one entry into Go:
//
//	goflat._native          bridge (Go)                    collector (C, under the GIL)
//	flatten(features) ──►   Flatten
//	                          open                    ──►  walks dict/list, one slot per entry:
//	                                                       address, rows, and a description where it is odd
//	                          layout, plan (flatten)
//	                          make or take outputs    ──►  torch.empty / numpy.empty / caller's out=
//	                          copy, GIL released if it takes long
//	                          close                   ──►  appends outputs to the result, drops references
//
// Invariants:
//   - Everything is validated before the first byte is written.
//   - A job owns a reference to each entry from open to close, so its addresses stay valid without the GIL.
//   - Every job that is opened is closed, also on errors and panics; Live is 0 between calls.
//   - Only integers and strings cross gopy; Python objects cross as addresses that the caller keeps alive.
//   - An error's text is "CODE|key index|batch|got|want", with -1 where key or batch does not apply. goflat._errors
//     turns it into an exception. CODE "PYTHON" means that TakeException has the exception itself.
package bridge
