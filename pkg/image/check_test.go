package image

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// closing builds an image of a repository by one step and returns the notes of the closing check.
func closing(t *testing.T, step string) (dirBox, []string, error) {
	t.Helper()
	b := newBox(t, nil)
	r, err := Build(t.Context(), b.job(Recipe{Setup: []string{"git init -q -b trunk .", step}}))
	if failed := new(StepError); errors.As(err, &failed) {
		t.Fatal(err)
	}
	return b, r.Warnings, err
}

// What could start a program, read another file, send elsewhere or hold a credential is refused, with the name and what to do.
func TestBuild_RefusesWhatIsLeft(t *testing.T) {
	set := func(key, value string) string { return "git config '" + key + "' '" + value + "'" }
	for _, tc := range []struct{ name, step, says string }{
		{"FSMonitor", set("core.fsmonitor", "/tmp/x"), ".git/config sets core.fsmonitor"},
		{"SSHCommand", set("core.sshCommand", "x"), "core.sshcommand"},
		{"Worktree", set("core.worktree", "/"), "core.worktree"},
		{"Filter", set("filter.x.smudge", "x"), "filter.x.smudge"},
		{"Alias", set("alias.st", "!x"), "alias.st"},
		{"CredentialHelper", set("credential.helper", "store"), "credential.helper"},
		{"ExtraHeader", set("http.https://h/.extraHeader", "Authorization: x"), "http.https://h/.extraheader"},
		{"InsteadOf", set("url.https://t@h/.insteadOf", "https://h/"), "url.https://t@h/.insteadof"},
		{"Include", set("include.path", "/etc/x"), "include.path"},
		{"IncludeIf", set("includeIf.gitdir:/.path", "x"), "includeif.gitdir:/.path"},
		{"TokenInURL", set("remote.origin.url", "https://user:token@h/r"), "remote.origin.url"},
		{"TokenAsUser", set("remote.origin.pushurl", "https://token@h/r"), "remote.origin.pushurl"},
		{"HelperURL", set("remote.origin.url", "ext::sh -c x"), "remote.origin.url"},
		{"OptionURL", set("submodule.x.url", "-u./x"), "submodule.x.url"},
		{"SubmoduleUpdate", set("submodule.x.update", "!x"), "submodule.x.update"},
		{"HooksOfASubsection", set("core.x.hooksPath", "x"), "core.x.hookspath"},
		{"NewSetting", set("core.inventedTomorrow", "x"), "core.inventedtomorrow"},
		{"InASubmodule", "git init -q s && mkdir -p .git/modules && mv s/.git .git/modules/s && git --git-dir .git/modules/s config core.pager x", ".git/modules/s/config sets core.pager"},
		{"WorktreeConfig", "git config extensions.worktreeConfig true && git config --worktree core.pager x", "config.worktree"},
		{"Alternates", "echo /tmp >.git/objects/info/alternates", "reads objects elsewhere: .git/objects/info/alternates"},
		{"CommonDir", "echo .. >.git/commondir", "more configuration: .git/commondir"},
		{"LinkedConfig", "mv .git/config c && ln -s ../c .git/config", "a link: .git/config"},
		{"LinkedHooks", "rm -r .git/hooks; mkdir h; ln -s ../h .git/hooks", "a link: .git/hooks"},
		{"GitFile", "mv .git g && echo gitdir: g >.git", "not a directory: .git"},
		{"GitLink", "mv .git g && ln -s g .git", "not a directory: .git"},
		{"BrokenConfig", "echo '[' >>.git/config", ".git cannot be looked at"},
		{"HugeConfig", "for i in 1 2 3 4 5 6 7 8 9 10 11; do git config user.name$i \"$(head -c 100000 /dev/zero | tr '\\0' x)\"; done", "more than 1048576 bytes of configuration"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := closing(t, tc.step)
			if !errors.Is(err, ErrLeft) || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want ErrLeft that says %q", err, tc.says)
			}
		})
	}
}

// What is harmless stays as it is.
func TestBuild_KeepsWhatIsHarmless(t *testing.T) {
	step := `git config user.name x; git config branch.a/b.merge refs/heads/a; git config remote.origin.url https://h/r; git config remote.up.url git@h:r
git config remote.p.url ssh://git@h/r; git config remote.l.url /srv/r.git; git config submodule.x.url ../x; git config color.diff.meta red; cp .git/config before
echo x >.git/hooks/pre-commit.sample; echo x >.git/hooks/pre-push; chmod 644 .git/hooks/pre-push
mkdir -p .git/refs/heads/hooks .git/refs/heads/config; echo "$(git hash-object -w --stdin </dev/null)" >.git/refs/heads/hooks/x`
	b, notes, err := closing(t, step)
	if err != nil || len(notes) > 0 {
		t.Errorf("got %v, notes %q", err, notes)
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(b.dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	if diff := cmp.Diff(read(".git/config"), read("before")); diff != "" {
		t.Errorf("config (-got +want):\n%s", diff)
	}
	read(".git/hooks/pre-push")
	if _, notes, err := closing(t, "rm -rf .git"); err != nil || len(notes) > 0 {
		t.Errorf("without a repository: %v, notes %q", err, notes)
	}
}

// Hooks are what ordinary tools leave: they are taken out of the image, which says so.
func TestBuild_DropsHooks(t *testing.T) {
	b, notes, err := closing(t, `git config core.hooksPath .husky/_; git config --add core.hooksPath "a
b"; mkdir -p .husky/_ .git/modules/s/hooks; echo x >.husky/_/pre-commit; chmod 755 .husky/_/pre-commit
for h in pre-commit pre-push; do echo x >.git/hooks/$h; chmod 755 .git/hooks/$h; done; ln -s /bin/true .git/hooks/post-merge; echo x >.git/modules/s/hooks/update; chmod 700 .git/modules/s/hooks/update
printf '[core]\n\tHooksPath = x\n' >.git/modules/s/config`)
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(notes, "\n"); len(notes) != 3 || !strings.Contains(text, "4 hooks in .git were removed") ||
		!strings.Contains(text, "core.hooksPath, which was a b, was unset in .git/config") || !strings.Contains(text, "unset in .git/modules/s/config") {
		t.Errorf("notes %q", notes)
	}
	for _, gone := range []string{".git/hooks/pre-commit", ".git/hooks/pre-push", ".git/hooks/post-merge", ".git/modules/s/hooks/update"} {
		if _, err := os.Lstat(filepath.Join(b.dir, gone)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want it gone", gone, err)
		}
	}
	for _, name := range []string{".git/config", ".git/modules/s/config"} {
		if text, err := os.ReadFile(filepath.Join(b.dir, name)); err != nil || strings.Contains(strings.ToLower(string(text)), "hookspath") {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
	if _, err := os.Stat(filepath.Join(b.dir, ".husky/_/pre-commit")); err != nil {
		t.Errorf("a file of the work tree: %v", err)
	}
}
