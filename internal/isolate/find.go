package isolate

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/warmfleet/warmfleet/internal/isolate/inside"
)

// FindPrograms says where commands of a sandbox find programs, by name; what they don't find is left out. dir is an
// empty directory, which becomes a workspace.
func FindPrograms(ctx context.Context, r Rung, dir string, names []string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	i, err := Start(ctx, Config{Rung: r})
	if err != nil {
		return nil, fmt.Errorf("isolate: find programs: %w", err)
	}
	defer i.Close()
	if err := attachDir(ctx, i, dir); err != nil {
		return nil, fmt.Errorf("isolate: find programs: %w", err)
	}
	var out bytes.Buffer
	res, err := i.Exec(ctx, Command{Argv: []string{selfExe, modeProbe, attemptFind, strings.Join(names, ",")}, Env: i.BaseEnv(), Stdout: &out})
	if err == nil && (res.ExitCode == nil || *res.ExitCode != 0) {
		err = fmt.Errorf("ended by %s %s", res.Cause, res.StartError)
	}
	if err != nil {
		return nil, fmt.Errorf("isolate: find programs: %w", err)
	}
	found := map[string]string{}
	for line := range strings.Lines(out.String()) {
		if name, path, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			found[name] = path
		}
	}
	return found, nil
}

// find prints where programs are, as the commands of a sandbox look for them.
func find(names string) int {
	for name := range strings.SplitSeq(names, ",") {
		if path, err := inside.LookPath(name); err == nil {
			fmt.Println(name, path)
		}
	}
	return 0
}
