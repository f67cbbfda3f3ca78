// Package faults kills programs built with fault points at each of them, fills disks under them, and leaves guards out one
// at a time; see docs/testing.md. All that has the build tag fault; without it there is a look at ordinary programs, which
// have no such points.
package faults
