package inside

import "time"

// graceTick is how often a tree that was asked to end is looked at.
const graceTick = 2 * time.Millisecond

// linger waits, where the command was asked to end, for all that came of it: a shell dies of the polite signal at once, while the
// program that it ran is still cleaning up. SIGKILL after the grace ends the wait, whether or not it reached all: what clears away goes on.
func (c *commands) linger() {
	for c.asked() && c.left() {
		time.Sleep(graceTick)
	}
}

func (c *commands) asked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.terminated && !c.killed
}

// left reaps what has ended and tells whether something of the command still runs.
func (c *commands) left() bool {
	if !reapEnded(c.kept.ended) {
		return false
	}
	keep := c.kept.spared()
	if len(keep) == 0 {
		return true
	}
	others, sure := outsiders(keep)
	return !sure || len(others) > 0
}
