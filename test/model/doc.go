// Package model plays the model test on real sandboxes: what commands do in them, checkpoints, rollbacks, forks, and
// going on from a checkpoint on another worker with a cache of its own, beside a plain copy.
package model
