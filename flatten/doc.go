// Package flatten plans and runs the move from a dictionary of lists of
// tensors to one tensor per batch.
package flatten
