// Package modeltest plays random histories on whatever keeps file trees with checkpoints, and on a plain copy beside
// it: changes of every kind, checkpoints, rollbacks, moves to another place. After each batch of changes, each
// checkpoint and each return to one the tree must equal the copy in all that layertest compares.
//
// The changes are made inside the tree by an agent, which is the test binary in a process of its own where
// that is needed, so that they meet the tree as a command would. What a kind of tree may do otherwise than a plain
// directory is told by the agent and done to the copy too, so nothing is left out of the comparison for it.
//
// It must not know layers, sandboxes or checkpoints: a test gives it functions that use them.
package modeltest
