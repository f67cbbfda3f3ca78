package isolate_test

import "runtime"

// lockThread binds the calling goroutine to its thread, which ends with it.
func lockThread() { runtime.LockOSThread() }
