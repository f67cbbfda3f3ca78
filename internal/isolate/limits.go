package isolate

import (
	"errors"
	"fmt"
	"os"

	"github.com/warmfleet/warmfleet/internal/isolate/inside"
)

// Limits bound what the commands of one sandbox use together. A zero field is no limit.
type Limits struct {
	Memory int64   // bytes; swap and files in /tmp count
	CPUs   float64 // cores
	PIDs   int     // processes and threads at once
	Disk   int64   // bytes on disk of what was written since the last checkpoint
}

// Exhausted counts how often commands ran into limits since their group was made.
type Exhausted struct {
	Memory    uint64 // processes killed for memory
	PIDs      uint64 // refused forks
	Throttled uint64 // periods in which the processor was withheld
}

// Group bounds the commands of one sandbox, which enter it as they are born; the init
// itself stays outside, so that it outlives what is killed for memory.
type Group interface {
	// Doors are files to which the thread that commands are forked from writes itself.
	// They stay the group's.
	Doors() []*os.File
	// Whole tells that there is one door, which a whole process goes through: commands do before they begin.
	Whole() bool
	// Set replaces the limits, at any time.
	Set(Limits) error
	Exhausted() (Exhausted, error)
	// Close removes the group. Every process in it must be dead.
	Close() error
}

// Usage counts the processes of the commands and what they have in memory for themselves,
// in bytes, by walking /proc.
func (i *Init) Usage() (processes int, memory int64) {
	for _, pid := range inside.Descendants(i.Pid()) {
		processes++
		memory += privateMemory(pid)
	}
	return processes, memory
}

// privateMemory is what a process has resident and shares with no file, 0 when it is gone.
func privateMemory(pid int) int64 {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	var size, resident, shared int64
	if err == nil {
		_, err = fmt.Sscan(string(content), &size, &resident, &shared)
	}
	if err != nil {
		return 0
	}
	return (resident - shared) * int64(os.Getpagesize())
}

// ErrFull is wrapped by what is refused because it would exceed Limits.Disk.
var ErrFull = errors.New("no room")

// ExceededError, as the cause of a cancelled context, makes Exec kill at once and report Cause.
type ExceededError struct {
	Cause Cause
	Why   string // for people, if the cause does not say it; one line
}

// Error says which limit it was.
func (e *ExceededError) Error() string { return "isolate: limit exceeded: " + string(e.Cause) }

// Group is what bounds the commands, nil where nothing does.
func (i *Init) Group() Group { return i.config.Group }

// doors are the descriptors that an init's thread of commands enters its group through.
func (c Config) doors() []int {
	if c.Group == nil {
		return nil
	}
	var fds []int
	for _, f := range c.Group.Doors() {
		fds = append(fds, int(f.Fd()))
	}
	return fds
}

// exceeded is the limit that ended a context, nil if it was something else.
func exceeded(err error) *ExceededError {
	var e *ExceededError
	errors.As(err, &e)
	return e
}
