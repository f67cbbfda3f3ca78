package plan

import (
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Each function here says what is wrong with one value, "" when nothing is. They know one
// word at a time and nothing of the plan around it.

// journalDir is where an apply stages its work, in the root of the original. No capture or
// difference includes it, so a file that a step puts there would be lost without a word.
const journalDir = ".warmfleet-apply"

var (
	poolPattern  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)
	envPattern   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	inputPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,62}$`)
	hostIDWords  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	hostPattern  = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)
	scpPattern   = regexp.MustCompile(`^([A-Za-z0-9._-]+@)?[A-Za-z0-9][A-Za-z0-9.-]*:[^:]`)
)

func poolProblem(name string) string {
	switch {
	case name == "default" || strings.HasPrefix(name, "h-"):
		return fmt.Sprintf("%s is a name of the fleet itself: choose a pool name that is not default and does not begin with h-", quote(name))
	case !poolPattern.MatchString(name):
		return fmt.Sprintf("%s is no pool name: use a-z, 0-9 and -, 1 to 40 of them, no - first", quote(name))
	}
	return ""
}

// pathProblem says why p does not stay in the workspace. Names alone are judged: links are
// resolved, and confined, where the path is opened.
func pathProblem(p string) string {
	elements := strings.Split(p, "/")
	switch {
	case p == "":
		return "is empty: give a path relative to the workspace"
	case strings.ContainsRune(p, 0):
		return "holds a NUL byte, which no path can"
	case path.IsAbs(p):
		return fmt.Sprintf("%s is absolute: give a path relative to the workspace", quote(p))
	case slices.Contains(elements, ".."):
		return fmt.Sprintf("%s could leave the workspace: write it without ..", quote(p))
	case len(p) > maxPath:
		return fmt.Sprintf("has %d bytes, Linux allows %d", len(p), maxPath)
	case strings.Split(path.Clean(p), "/")[0] == journalDir:
		return fmt.Sprintf("%s lies in %s, which is left out of every checkpoint: choose another place", quote(p), journalDir)
	}
	return ""
}

func fileProblem(p string) string {
	if problem := pathProblem(p); problem != "" {
		return problem
	}
	if path.Clean(p) == "." || strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.") {
		return fmt.Sprintf("%s names a directory: name a file", quote(p))
	}
	return ""
}

// ValidVariable tells whether a shell could name a variable so: letters, digits and _, no digit first.
func ValidVariable(name string) bool { return envPattern.MatchString(name) }

func envNameProblem(name string) string {
	switch {
	case !ValidVariable(name):
		return fmt.Sprintf("%s is no name of a variable: use letters, digits and _, no digit first", quote(name))
	case strings.HasPrefix(name, "WARMFLEET_"):
		return fmt.Sprintf("%s is set by the fleet: choose a name that does not begin with WARMFLEET_", quote(name))
	}
	return ""
}

func envValueProblem(name, value string) string {
	switch n := len(name) + 1 + len(value); {
	case strings.ContainsRune(value, 0):
		return "holds a NUL byte, which no variable can"
	case n > MaxEnvBytes:
		return fmt.Sprintf("%s and its value have %d bytes, Linux allows %d: put the value into a file", name, n, MaxEnvBytes)
	}
	return ""
}

func inputNameProblem(name string) string {
	if !inputPattern.MatchString(name) {
		return fmt.Sprintf("%s is no name: use letters, digits, _ and -, at most 63, a letter or _ first", quote(name))
	}
	return ""
}

func hostIDProblem(host string) string {
	if !hostIDWords.MatchString(host) {
		return fmt.Sprintf("%s is no host id: use letters, digits, ., - and _", quote(host))
	}
	return ""
}

// identProblem holds a name or address against what git would make of it: git cuts these
// characters at both ends and some of them everywhere (strbuf_addstr_without_crud in ident.c).
func identProblem(s string) string {
	const crud = ".,:;<>\"\\'"
	trimmed := strings.TrimFunc(s, func(c rune) bool { return c <= ' ' || strings.ContainsRune(crud, c) })
	switch {
	case s == "":
		return "is missing: git needs both name and email"
	case strings.ContainsFunc(s, isControl) || strings.ContainsAny(s, "<>"):
		return "git can't store < > or control characters in it: remove them"
	case trimmed == "":
		return fmt.Sprintf("%s has no character that git stores: give a real one", quote(s))
	case trimmed != s:
		return fmt.Sprintf("git would store %s instead of %s: write that", quote(trimmed), quote(s))
	}
	return ""
}

// branchProblem is refProblem for the short name of a branch that may be made. Git itself makes no branch HEAD, and one
// whose name begins with refs/ is never what was meant.
func branchProblem(name string) string {
	if name == "HEAD" || strings.HasPrefix(name, "refs/") {
		return fmt.Sprintf("%s is no name for a branch: give its short name, as main", quote(name))
	}
	return refProblem(name)
}

// refProblem follows git check-ref-format, and refuses what a command line could take for an option.
func refProblem(ref string) string {
	bad := ""
	switch {
	case ref == "":
		return "is empty: name a branch, tag or commit"
	case strings.HasPrefix(ref, "-"):
		bad = "begins with -"
	case strings.HasPrefix(ref, "+"):
		bad = "begins with +, which a push takes for force"
	case strings.ContainsFunc(ref, isBidi):
		bad = "holds a character that changes the direction of text"
	case strings.ContainsFunc(ref, isControl) || strings.ContainsAny(ref, " ~^:?*[\\"):
		bad = "holds a character that git refuses"
	case strings.Contains(ref, "..") || strings.Contains(ref, "@{") || strings.Contains(ref, "//") || ref == "@":
		bad = "holds a sequence that git refuses"
	case strings.HasPrefix(ref, "/") || strings.HasSuffix(ref, "/") || strings.HasSuffix(ref, "."):
		bad = "begins or ends in a way that git refuses"
	case len(ref) > 250:
		bad = "is longer than 250 bytes"
	default:
		for e := range strings.SplitSeq(ref, "/") {
			if strings.HasPrefix(e, ".") || strings.HasSuffix(e, ".lock") {
				bad = "has a part that begins with . or ends with .lock"
			}
		}
	}
	if bad == "" {
		return ""
	}
	return fmt.Sprintf("%s %s: give a plain branch, tag or commit", quote(ref), bad)
}

// repoProblem refuses URLs that carry credentials and those that make git run a program
// (ext::, options); what may be reached is the worker's decision.
func repoProblem(repo string) string {
	switch {
	case repo == "":
		return "is empty: give a git URL"
	case strings.ContainsFunc(repo, isControl):
		return "holds a control character: give a git URL"
	case strings.ContainsFunc(repo, isBidi):
		return "holds a character that changes the direction of text: give a git URL"
	case strings.HasPrefix(repo, "-"):
		return fmt.Sprintf("%s begins with -: give a git URL", quote(repo))
	case path.IsAbs(repo):
		return ""
	case strings.ContainsRune(repo, ' '):
		return "holds a space: give a git URL, with %20 for it, or an absolute path"
	}
	if !strings.Contains(repo, "://") {
		if _, rest, _ := strings.Cut(repo, ":"); scpPattern.MatchString(repo) && !strings.Contains(rest, "@") {
			return ""
		}
		return "is no git URL: write https://, ssh:// or file:// and the rest, or host:path"
	}
	u, err := url.Parse(repo)
	if err != nil {
		return "is no git URL: write https://host/path.git"
	}
	if !slices.Contains([]string{"https", "http", "ssh", "git", "file"}, u.Scheme) {
		return fmt.Sprintf("the scheme %s is not used: write https, http, ssh, git or file", quote(u.Scheme))
	}
	_, hasPassword := u.User.Password()
	if hasPassword || u.User != nil && u.Scheme != "ssh" {
		return "carries credentials, which would end in logs and configuration: remove them, the worker asks its provider"
	}
	if u.Host == "" && u.Scheme != "file" || u.Path == "" || strings.HasPrefix(u.Host, "-") {
		return fmt.Sprintf("%s names no repository: write host and path", quote(repo))
	}
	return ""
}

func hostPortProblem(s string) string {
	addr, err := netip.ParseAddr(s)
	if at, portErr := netip.ParseAddrPort(s); portErr == nil && at.Port() != 0 {
		addr, err = at.Addr(), nil
	}
	switch {
	case err == nil && addr.Zone() != "":
		return fmt.Sprintf("%s names an interface of one machine: leave that out", quote(s))
	case err == nil:
		return ""
	}
	host, port, hasPort := strings.Cut(s, ":")
	if n, err := strconv.ParseUint(port, 10, 16); hasPort && (err != nil || n == 0 || port[0] == '0') {
		return fmt.Sprintf("%s has no port from 1 to 65535 after the colon: write host or host:port", quote(s))
	}
	labels := strings.Split(host, ".")
	switch {
	case len(host) > 253 || !hostPattern.MatchString(host) || slices.ContainsFunc(labels, func(l string) bool { return len(l) > 63 }):
		return fmt.Sprintf("%s is no host: write host or host:port, international names in their ASCII form", quote(s))
	case labels[len(labels)-1][0] <= '9': // programs do not agree on what 127.1 is
		return fmt.Sprintf("%s is neither a host nor a whole address: write all four numbers", quote(s))
	}
	return ""
}
