// Package fault holds the places where tests make a real process die, fail or leave out a guard.
//
// A point is a named moment: At is one where a process may die, Err one where an operation may also fail. A guard is a
// check that a test leaves out to see that something notices. Names are words joined by dots, the package first; each
// is used at one place only, and only tests speak of them.
//
// Without the build tag "fault" all of it compiles to nothing, and no program looks at the environment. With it, three
// variables decide:
//
//	WARMFLEET_FAULT=NAME:N:HOW      the N-th passage of a point, from 1, is fatal. HOW is kill (SIGKILL of the process),
//	                                or for an Err point enospc or eio; with N+ every passage from the N-th on is
//	WARMFLEET_FAULT_TRACE=FILE      each passage is appended to FILE: "NAME N kill" or "NAME N err"
//	WARMFLEET_BROKEN=NAME,NAME,...  these guards are left out
//
// The package knows nothing of what it is used for.
package fault
