package gpu

import (
	"errors"
	"fmt"
	"runtime"

	"gorgonia.org/cu"

	"github.com/goflat/goflat/flatten"
)

// ErrClosed is what a closed [Context] returns.
var ErrClosed = errors.New("the context is closed")

// A Context is a CUDA context that the caller has, with goflat's kernels in it: for
// programs that work with contexts, streams and memory of gorgonia.org/cu. Its methods
// may be called from several goroutines at once, on any thread, whatever context is
// current there; that context is current again afterwards.
//
// [Gather] and its like are for the primary context, which CUDA's runtime, PyTorch and
// CuPy use; they need no Context.
type Context struct {
	// Loaded at first, never through use, which would take the primary context.
	kernels device
}

// NewContext loads the kernels into a context, of [cu.Device.MakeContext],
// [cu.Ctx.CUDAContext] or [cu.Device.RetainPrimaryCtx]. The caller keeps the context
// until after [Context.Close].
//
// It returns an [UnavailableError] where there is no driver or the device is too old, and
// otherwise what the driver says, as an [Error].
func NewContext(context cu.CUContext) (*Context, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	if contextHandle(context) == 0 {
		return nil, errors.New("use a context: got none, want one that cu has made")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := new(Context)
	err := relaxed(func() error {
		l, err := loadInto(contextHandle(context))
		if err == nil {
			c.kernels.ordinal = int(l.device)
			c.kernels.loaded.Store(l)
		}
		return err
	})
	if err != nil {
		c.Close() // the last call may have failed, after loading
		return nil, fmt.Errorf("load kernels into the context %v: %w", context, err)
	}
	return c, nil
}

// loadInto loads the kernels into a context that somebody else keeps, or leaves nothing
// behind.
func loadInto(context uintptr) (*loaded, error) {
	l := &loaded{context: context}
	s, err := enter(context)
	if err != nil {
		return nil, err
	}
	l.device, err = cu.CurrentDevice()
	if err := s.leave(failure("cuCtxGetDevice", err)); err != nil {
		return nil, err
	}
	if l.multiprocessors, err = inspect(l.device); err != nil {
		return nil, err
	}
	if err := l.loadKernels(); err != nil {
		l.unloadModule()
		return nil, err
	}
	return l, nil
}

// Gather is [Gather] in this context, on a stream of it; the zero [cu.Stream] is the
// legacy default stream. Addresses are as there: those of the lowest bytes that the
// views touch.
func (c *Context) Gather(stream cu.Stream, plan *flatten.Plan, dst, src []cu.DevicePtr) error {
	on, err := c.use()
	if err != nil || len(plan.Segments) == 0 {
		return err
	}
	if err := checkAddresses("gather", plan, len(dst), len(src)); err != nil {
		return err
	}
	return gatherOn(on, c.kernels.ordinal, StreamHandle(stream), plan, addresses(dst), addresses(src))
}

// Moves is [Moves] in this context, on a stream of it.
func (c *Context) Moves(stream cu.Stream, moves []flatten.Move) error {
	on, err := c.use()
	if err != nil || len(moves) == 0 {
		return err
	}
	if err := checkMoves(moves); err != nil {
		return err
	}
	return movesOn(on, StreamHandle(stream), moves)
}

// Permute is [Permute] in this context, on a stream of it. Tables that it may need are kept
// until [Context.Close] and not counted by [Held].
func (c *Context) Permute(stream cu.Stream, p *flatten.Permutation) error {
	on, err := c.use()
	if err != nil || p.Units() == 0 {
		return err
	}
	permuter, err := c.kernels.usePermuter(on)
	if err != nil {
		return err
	}
	return permuter.permute(StreamHandle(stream), p)
}

// Prepare is [Prepare] in this context: what it returns is for streams of it, see
// [StreamHandle], and must not be launched after [Context.Close].
func (c *Context) Prepare(plan *flatten.Plan, dst, src []cu.DevicePtr) (*Prepared, error) {
	on, err := c.use()
	if err != nil {
		return nil, err
	}
	if err := checkAddresses("prepare", plan, len(dst), len(src)); err != nil {
		return nil, err
	}
	return prepareOn(on, c.kernels.ordinal, plan, addresses(dst), addresses(src))
}

// Close unloads the kernels and frees what goflat has in the context; the context itself
// stays the caller's. Work that is enqueued must be done: synchronize the streams first.
// No other method may be running. A second call does nothing.
func (c *Context) Close() {
	if p := c.kernels.permuter.Swap(nil); p != nil {
		p.unload()
	}
	if l := c.kernels.loaded.Swap(nil); l != nil {
		l.unloadModule()
	}
}

// use returns the kernels until Close.
func (c *Context) use() (*loaded, error) {
	if on := c.kernels.loaded.Load(); on != nil {
		return on, nil
	}
	return nil, ErrClosed
}
