package isolate

import "os"

// BaseEnv is the environment that every command needs, without what a plan adds.
func (i *Init) BaseEnv() []string {
	dir, tmp := i.home(), "/tmp"
	if i.config.Rung == RungBare {
		tmp = os.TempDir()
	}
	return append([]string{
		// Go's own place of installation; it comes with /usr where it is there.
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + dir, "TMPDIR=" + tmp, "USER=sandbox", "LOGNAME=sandbox", "SHELL=/bin/sh", "LANG=C.UTF-8", "TERM=dumb",
	}, i.config.cacheEnv()...)
}

// sandboxHome is where HOME is inside the namespaces.
const sandboxHome = "/home/sandbox"

func (i *Init) home() string {
	if i.config.Rung == RungBare {
		return i.homeDir
	}
	return sandboxHome
}
