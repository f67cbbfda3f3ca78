package plan

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/layer"
)

func TestNames_Accepted(t *testing.T) {
	for name, tc := range map[string]struct {
		problem func(string) string
		values  []string
	}{
		"Pool":  {poolProblem, []string{"api", "a", "0-1", "x-h-y", "a-", strings.Repeat("a", 40)}},
		"Path":  {pathProblem, []string{".", "a", "a/b", "./a", "a..b", "..a", "-rf", "--help", "é/ü", "a b", "a\nb", "a/", ".git/config"}},
		"File":  {fileProblem, []string{"a", "a/b/c.txt", ".gitignore", "new dir/é/-rf"}},
		"Env":   {envNameProblem, []string{"A", "_a1", "PATH", "warmfleet_x"}},
		"Input": {inputNameProblem, []string{"pkg", "node-version", "A_1"}},
		"Host":  {hostIDProblem, []string{"0123456789abcdef0123456789abcdef", "host.example", "a_b"}},
		"Ref":   {refProblem, []string{"main", "feat/#1", "it's", "a&b", "ü", "a->b", "v1.2", "a+b", "ä\u200f", "refs/heads/x", "deadbeef", strings.Repeat("a", 200)}},
		"Repo": {repoProblem, []string{
			"https://host/x.git", "http://127.0.0.1:8080/r", "ssh://git@host/x", "git@host:acme/api.git", "host:x",
			"file:///srv/r.git", "/srv/r.git", "git://host/x", "/srv/a b.git", "file:///srv/a%20b.git",
		}},
		"HostPort": {hostPortProblem, []string{"host", "a.b.example", "a.b:443", "10.0.0.1", "10.0.0.1:80", "::1", "[::1]:80", "*.example.com"}},
		"Ident":    {identProblem, []string{"O'Neil", `A "B" C`, "$(touch CANARY)", "`id`", "Zoë 李", "a:b", "author@example.com"}},
		"Retry":    {conditionProblem, []string{"exit", "exit:1", "exit:255", "signal", "signal:KILL", "signal:RTMIN+3", "timeout", "oom", "disk", "pids", "start", "lost"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, v := range tc.values {
				if got := tc.problem(v); got != "" {
					t.Errorf("%q: %s, want it accepted", v, got)
				}
			}
		})
	}
}

func TestNames_Refused(t *testing.T) {
	for name, tc := range map[string]struct {
		problem func(string) string
		values  []string
	}{
		"Pool":   {poolProblem, []string{"", "default", "h-", "h-abc", "-", "-o", "--force", "A", "a.b", "a b", strings.Repeat("a", 41), "a\n"}},
		"Path":   {pathProblem, []string{"", "/", "/a", "..", "../a", "a/..", "a/../b", "a\x00b", ".warmfleet-apply", "./.warmfleet-apply/x", strings.Repeat("a/", 2048)}},
		"File":   {fileProblem, []string{".", "./", "a/", "a/.", "../x"}},
		"Env":    {envNameProblem, []string{"", "1A", "A-B", "A=B", "A B", "A\n", "é", "WARMFLEET_", "WARMFLEET_INPUT_X"}},
		"Input":  {inputNameProblem, []string{"", "1a", "a.b", "a b", strings.Repeat("a", 64)}},
		"Host":   {hostIDProblem, []string{"", "-a", "a b", "a/b", "h\n"}},
		"Branch": {branchProblem, []string{"HEAD", "refs/heads/main", "", "a b"}},
		"Ref": {refProblem, []string{
			"", "-x", "--upload-pack=touch CANARY;git-upload-pack", "a b", "a..b", "a~1", "a^", "a:b", "a?", "a*", "a[", `a\b`,
			"@", "a@{1}", "/a", "a/", "a//b", "a.", ".a", "a/.b", "a.lock", "a.lock/b", "a\nb", "+x", "+refs/heads/x:y", "a\u202eb", "a\u2066b", strings.Repeat("a", 251),
		}},
		"Repo": {repoProblem, []string{
			"", "x", "./x", "../x.git", "--config=x", "-x", "ext::sh -c 'touch CANARY'", "ext::sh", "fd::17", "ftp://host/x", "https://", "https://host",
			"https://user:secret@host/x", "https://token@host/x", "ssh://git:secret@host/x", "https:/u:p@host/x", "https://ho st/x", "https://host/a b", "file:///srv/a b.git", "/srv/a\nb", "https://host/a\nb", "ssh://-oProxyCommand=x/y", "https://[/x", "https://host/a\u202eb", "/srv/\u2069b",
		}},
		"HostPort": {hostPortProblem, []string{"", ":80", "a:", "a:0", "a:080", "a:65536", "a:b", "a b", "-a", "a-", "a..b", "*", "a.*.b", "https://a", "[::1]", "127.1", "0x7f000001", "2130706433:80", "10.0.0.1:0", "fe80::1%lo", "[fe80::1%lo]:80", "bücher.example", strings.Repeat("a", 64) + ".b"}},
		"Ident":    {identProblem, []string{"", ".", "...", " ", " lead", "trail ", "a\nb", "a\x00b", "a<b>", "Jr.", `back\`, `"q"`, "x,"}},
		"Retry":    {conditionProblem, []string{"", "exit:", "exit:0", "exit:256", "exit:-1", "exit:01", "exit:x", "signal:", "signal:SIGKILL", "signal:9", "timeout:5", "cancelled", "always"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, v := range tc.values {
				if got := tc.problem(v); got == "" {
					t.Errorf("%q is accepted", v)
				}
			}
		})
	}
}

func TestRepoProblem_KeepsCredentialsOutOfTheMessage(t *testing.T) {
	for _, url := range []string{"https://user:s3cret@host/x", "https://s3cret@host/x", "https://u:s3cret@[/x", "u:s3cret@host", "ext+https://u:s3cret@h/x"} {
		if got := repoProblem(url); got == "" || strings.Contains(got, "s3cret") {
			t.Errorf("%q: %q, want a refusal without the credential", url, got)
		}
	}
}

func TestPathProblem_KnowsTheJournal(t *testing.T) {
	if got, want := journalDir, layer.JournalDir; got != want {
		t.Errorf("journalDir = %q, want %q", got, want)
	}
}

func gitPath(t *testing.T) string {
	t.Helper()
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("needs git to compare with")
	}
	return git
}

// Case J6: the commit shows the name exactly, or the plan is refused.
func TestIdentProblem_AgreesWithGit(t *testing.T) {
	git := gitPath(t)
	for _, name := range []string{
		"O'Neil", `A "B" C`, "$(touch CANARY)", "`id`", `back\`, `a\b`, " lead", "trail ", "Zoë 李", "...", "King Jr.", "a<b>", "x,", "a:b", "'q'", "a;b", "-",
	} {
		cmd := exec.Command(git, "var", "GIT_AUTHOR_IDENT")
		cmd.Env = []string{"GIT_AUTHOR_NAME=" + name, "GIT_AUTHOR_EMAIL=a@b", "GIT_CONFIG_NOSYSTEM=1", "HOME=/nonexistent"}
		out, err := cmd.Output()
		stored := err == nil && strings.HasPrefix(string(out), name+" <a@b> ")
		if problem := identProblem(name); (problem == "") != stored {
			t.Errorf("%q: problem %q, but git printed %q", name, problem, out)
		}
	}
}

func TestRefProblem_AgreesWithGit(t *testing.T) {
	git := gitPath(t)
	for _, ref := range []string{
		"main", "a->b", "it's", "feat/#1", "a&b", "ü", "a.lock", "a..b", "a b", "a/", "/a", "a//b", ".a", "a.", "a@{x", "a/@", "a:b", "a\\b", "a\x7fb", "x/.y", "a.lockx",
	} {
		err := exec.Command(git, "check-ref-format", "--branch", ref).Run()
		if problem := refProblem(ref); (problem == "") != (err == nil) {
			t.Errorf("%q: problem %q, but git says %v", ref, problem, err)
		}
	}
}
