package isolate

import "os"

// BaseEnv is the environment that every command needs, without what a plan adds.
func (i *Init) BaseEnv() []string {
	dir, tmp := i.home(), "/tmp"
	switch i.config.Rung {
	case RungBare:
		tmp = os.TempDir()
	case RungLandlock:
		tmp = i.private + "/tmp"
	}
	return append([]string{
		// Go's own place of installation; it comes with /usr where it is there.
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + dir, "TMPDIR=" + tmp, "USER=sandbox", "LOGNAME=sandbox", "SHELL=/bin/sh", "LANG=C.UTF-8", "TERM=dumb",
	}, i.config.cacheEnv()...)
}

// sandboxHome is where HOME is inside the namespaces.
const sandboxHome = "/home/sandbox"

// home is HOME as commands see it.
func (i *Init) home() string {
	switch i.config.Rung {
	case RungBare, RungLandlock:
		return i.hostHome()
	}
	return sandboxHome
}

// hostHome is HOME as the init sees it.
func (i *Init) hostHome() string {
	switch {
	case i.config.Rung.Mounts():
		return sandboxHome
	case i.config.Rung == RungBare:
		return i.private
	}
	return i.private + "/home"
}
