package modeltest

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/warmfleet/warmfleet/internal/layer/layertest"
)

// JobVariable names the file of a Job in the environment of an agent.
const JobVariable = "WARMFLEET_MODEL_JOB"

// Job is what an agent does in a tree.
type Job struct {
	// Dir is the tree; a sandbox' command starts in it, and says ".".
	Dir string
	// Mount, if there, is mounted there first.
	Mount *layertest.Overlay
	Ops   []Op
	// Hints, if there, say how each operation went elsewhere.
	Hints []Result
}

// Report is what an agent did and found.
type Report struct {
	Results []Result
	Tree    layertest.Snapshot
	// From and To bound the times that the operations gave to what they touched, in nanoseconds.
	From, To int64
	Err      string
}

// clockSlack is how far the clock that stamps files may lag behind that which is read: a tick of at most 10 ms.
const clockSlack = int64(20 * time.Millisecond)

// Main runs an agent, and does not return, if this process was started as one. A TestMain calls it first.
func Main() {
	file := os.Getenv(JobVariable)
	if file == "" {
		return
	}
	var job Job
	err := readGob(file, &job)
	if err == nil {
		do := Do
		if job.Mount != nil {
			do = doMounted
		}
		err = gob.NewEncoder(os.Stdout).Encode(do(job))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Do does a job in this process.
func Do(job Job) Report {
	root, err := layertest.OpenFolder(job.Dir)
	if err != nil {
		return Report{Err: err.Error()}
	}
	r := Report{From: time.Now().UnixNano() - clockSlack}
	for i, op := range job.Ops {
		var hint *Result
		if i < len(job.Hints) {
			hint = &job.Hints[i]
		}
		r.Results = append(r.Results, op.apply(root, hint))
	}
	r.To = time.Now().UnixNano() + clockSlack
	err = root.Close()
	if err == nil {
		r.Tree, err = layertest.TakeClosed(job.Dir)
	}
	if err != nil {
		r.Err = err.Error()
	}
	return r
}

// Write stores a job for an agent.
func (j Job) Write(file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(gob.NewEncoder(f).Encode(j), f.Close())
}

func readGob(file string, v any) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return gob.NewDecoder(f).Decode(v)
}

// ReadReport reads what an agent wrote.
func ReadReport(r io.Reader) (Report, error) {
	var report Report
	if err := gob.NewDecoder(r).Decode(&report); err != nil {
		return Report{}, fmt.Errorf("read the agent's report: %w", err)
	}
	return report, nil
}

// Process does a job in a process of its own, with the given attributes.
func Process(job Job, attr *syscall.SysProcAttr) (Report, error) {
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		return Report{}, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "job")
	if err := errors.Join(os.Chmod(dir, 0o755), job.Write(file)); err != nil {
		return Report{}, err
	}
	exe, err := os.Open("/proc/self/exe") // by descriptor: it may lie where the agent's user may not look
	if err != nil {
		return Report{}, err
	}
	defer exe.Close()
	cmd := exec.Command("/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{exe}
	cmd.Env = []string{JobVariable + "=" + file, "GORACE=atexit_sleep_ms=0"}
	cmd.SysProcAttr = attr
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return Report{}, fmt.Errorf("run an agent: %w: %s", err, complaint.String())
	}
	return ReadReport(&out)
}
