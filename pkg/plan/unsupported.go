package plan

// Unsupported lists the fields that are valid but not built in this version, one line each,
// as in "limits.memory_mb: not enforced by this worker". A plan with any is refused before
// something runs, never run without them.
func (p *Plan) Unsupported() []string {
	var lines []string
	add := func(used bool, line string) {
		if used {
			lines = append(lines, line)
		}
	}
	add(p.Pool != "", "pool: warm pools are not built in this version: name a path or repo instead")
	add(p.Key != "", "key: plans are not serialised by key in this version: remove it")
	if l := p.Limits; l != nil {
		add(l.MemoryMB != 0, "limits.memory_mb: not enforced by this worker")
		add(l.CPUCores != 0, "limits.cpu_cores: not enforced by this worker")
		add(l.DiskGB != 0, "limits.disk_gb: not enforced by this worker")
		add(l.PIDs != 0, "limits.pids: not enforced by this worker")
	}
	add(p.Network != nil && p.Network.Mode == "", "network: a list of hosts is not enforced by this worker: use none or allow")
	add(len(p.Secrets) > 0, "secrets: no provider is built in this version: remove them")
	for i := range p.Steps {
		s, at := &p.Steps[i], index("steps", i)
		add(len(s.Outputs) > 0, at+".outputs: not collected by this worker")
		add(len(s.Artifacts) > 0, at+".artifacts: not kept by this worker")
	}
	add(p.Commit != nil && p.Strategy == InPlace, "commit: strategy none changes the files in place: use copy_on_write or git_worktree")
	return lines
}
