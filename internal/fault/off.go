//go:build !fault

package fault

// Enabled tells whether the program was built with the tag "fault".
const Enabled = false

// At is a point where the process may die.
func At(string) {}

// AtEach is At of the point "name.of", for a place that many things pass.
func AtEach(_, _ string) {}

// Err is a point where the process may die, or the operation that follows fail with the returned error.
func Err(string) error { return nil }

// Hook is Err for steps that have names of their own: the point is "name." and the step's name without its numbers,
// in words joined by dashes.
func Hook(string) func(step string) error { return func(string) error { return nil } }

// Off tells whether the guard is to be left out.
func Off(string) bool { return false }
