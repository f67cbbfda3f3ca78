package plan

// Unsupported lists the fields that are valid but not built in this version, one line each,
// as in "key: plans are not serialised by key in this version". A plan with any is refused before
// something runs, never run without them.
func (p *Plan) Unsupported() []string {
	var lines []string
	add := func(used bool, line string) {
		if used {
			lines = append(lines, line)
		}
	}
	add(p.Key != "", "key: plans are not serialised by key in this version: remove it")
	for i := range p.Steps {
		s, at := &p.Steps[i], index("steps", i)
		add(len(s.Outputs) > 0, at+".outputs: not collected by this worker")
		add(len(s.Artifacts) > 0, at+".artifacts: not kept by this worker")
	}
	add(p.Commit != nil && p.Strategy == InPlace, "commit: strategy none changes the files in place: use copy_on_write or git_worktree")
	return lines
}
