package suite

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/warmfleet/warmfleet/internal/isolate/inside"
)

// holdings are what a process has, by /proc.
type holdings struct {
	cpu                time.Duration // of its threads, those that ended left out
	pss, files, mounts float64       // MiB, and numbers; files is unseen where only root may look
}

const unseen = -1

func takeHoldings(pid int) (h holdings, err error) {
	if h.cpu, err = cpuOf(pid); err != nil {
		return h, err
	}
	if h.pss, err = pssOf(pid); err != nil {
		return h, err
	}
	entries, err := os.ReadDir(proc(pid, "fd"))
	if h.files = float64(len(entries)); errors.Is(err, fs.ErrPermission) {
		h.files, err = unseen, nil
	}
	if err != nil {
		return h, err
	}
	table, err := os.ReadFile(proc(pid, "mountinfo"))
	h.mounts = float64(bytes.Count(table, []byte("\n")))
	return h, err
}

func proc(pid int, name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }

// cpuOf reads what /proc/PID/task/TID/schedstat gives first: nanoseconds on a processor.
func cpuOf(pid int) (time.Duration, error) {
	names, err := filepath.Glob(proc(pid, "task/*/schedstat"))
	if err != nil {
		return 0, err
	}
	total := time.Duration(0)
	for _, name := range names {
		b, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		first, _, _ := strings.Cut(string(b), " ")
		ns, parseErr := strconv.ParseInt(first, 10, 64)
		if err := errors.Join(err, parseErr); err != nil {
			return 0, err
		}
		total += time.Duration(ns)
	}
	return total, nil
}

// pssOf is a process's proportional share of memory in MiB: what is only its own, and its part of what it shares.
func pssOf(pid int) (float64, error) { return mebibytes(proc(pid, "smaps_rollup"), "Pss:") }

// mebibytes reads a line of a file of /proc, as in "Pss:  1024 kB".
func mebibytes(file, name string) (float64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) == 3 && fields[0] == name {
			kib, err := strconv.ParseFloat(fields[1], 64)
			return kib / 1024, err
		}
	}
	return 0, errors.Join(lines.Err(), fmt.Errorf("no %s in %s", name, file))
}

// resetPeak makes this process's memory of now its peak, and returns it in MiB.
func resetPeak() (float64, error) {
	const peak = "5" // proc(5), clear_refs: reset the high-water mark of the resident set
	runtime.GC()
	if err := os.WriteFile("/proc/self/clear_refs", []byte(peak), 0); err != nil {
		return 0, err
	}
	return peakMemory()
}

// peakMemory is the most that this process has had resident, in MiB.
func peakMemory() (float64, error) { return mebibytes("/proc/self/status", "VmHWM:") }

// children are the processes below one whose arguments are argv.
func children(pid int, argv ...string) []int {
	want := []byte(strings.Join(argv, "\x00") + "\x00")
	var found []int
	for _, child := range inside.Descendants(pid) {
		got, err := os.ReadFile(proc(child, "cmdline"))
		if err == nil && bytes.Equal(got, want) {
			found = append(found, child)
		}
	}
	return found
}
