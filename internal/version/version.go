// Package version tells which build this is.
package version

import "runtime/debug"

// Version is the module's version, or the commit it was built from, or "dev".
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "dev"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return s.Value[:12]
		}
	}
	return "dev"
}

// Semver is a version that NATS micro services accept: Version, or 0.0.0 where it isn't one.
func Semver() string {
	if v := Version(); len(v) > 1 && v[0] == 'v' {
		return v[1:]
	}
	return "0.0.0"
}
