// Package plans tests plans of every kind, from the command line to the original: what steps may do, what a plan sees and leaves, how it
// is cancelled and told. What is brought back to originals, and pools, have packages of their own.
package plans
