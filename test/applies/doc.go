// Package applies tests what plans bring to originals: conflicts with what somebody else did meanwhile, commits, pushes and who is named
// in them, and undoing all that.
package applies
