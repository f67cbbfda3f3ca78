package doctor

import (
	"context"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"
)

// versionLimit bounds a program that is asked for its version.
const versionLimit = 400 * time.Millisecond

// Program is an interpreter or tool that plans often need.
type Program struct {
	Name string `json:"name"`
	// Path is where steps find it, else where this process does, "" where it is nowhere.
	Path    string `json:"path,omitempty"`
	Version string `json:"version,omitempty"`
	// Visible says whether a sandbox has it; Why, where it is only on the host.
	Visible bool   `json:"visible"`
	Why     string `json:"why,omitempty"`
}

// programs are looked for, in this order.
func programs() []string {
	return []string{"sh", "bash", "git", "python3", "node", "go", "make", "gcc", "cargo", "java", "ruby", "php", "docker"}
}

// versionArg is how a program is asked; no argument means that it can't be.
func versionArg(name string) []string {
	switch name {
	case "sh":
		return nil // dash has no way
	case "go":
		return []string{"version"}
	case "java":
		return []string{"-version"}
	}
	return []string{"--version"}
}

// askVersions asks all at once; who takes too long has none.
func (e *examination) askVersions() {
	e.here = map[string]Program{}
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, name := range programs() {
		asked.Go(func() {
			p := Program{Name: name}
			p.Path, p.Version = ask(name)
			mu.Lock()
			e.here[name] = p
			mu.Unlock()
		})
	}
	asked.Wait()
}

func ask(name string) (path, version string) {
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/local/go/bin/" + name) // where sandboxes look too
	}
	if err != nil {
		return "", ""
	}
	arg := versionArg(name)
	if arg == nil {
		return path, ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), versionLimit)
	defer cancel()
	c := exec.CommandContext(ctx, path, arg...)
	c.Env, c.Dir, c.WaitDelay = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nonexistent", "LC_ALL=C", "GOTOOLCHAIN=local"}, "/", versionLimit
	out, _ := c.CombinedOutput()
	return path, versionIn(string(out))
}

var number = regexp.MustCompile(`\d+(\.\d+)+`)

// versionIn is the first thing in a text that looks like a version.
func versionIn(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return number.FindString(line)
}

// joinPrograms puts together what the host has and what a sandbox sees of it.
func (e *examination) joinPrograms() {
	for _, name := range programs() {
		p := e.here[name]
		if path, ok := e.visible[name]; ok {
			p.Path, p.Visible = path, true
		} else if p.Path != "" {
			p.Why = "outside of what steps see (/usr, /bin, /sbin, /lib*): show its directory with --expose, and put it into the plan's PATH"
		}
		e.report.Programs = append(e.report.Programs, p)
	}
}
