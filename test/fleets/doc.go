// Package fleets tests fleets of several processes: workers that die, stop or are cut off, servers and schedulers that start again, what
// the store holds in the end, and that other people's tools and the deployed configuration work.
package fleets
