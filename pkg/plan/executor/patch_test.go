package executor_test

import (
	"strings"
	"testing"

	"github.com/warmfleet/warmfleet/internal/sandboxtest"
)

func TestRun_Patch(t *testing.T) {
	r := newRig(t, `
steps:
  - run: printf 'x\r\ny' >crlf; ln -s a link; chmod 755 a
  - patch:
      diff: |
        --- a/a
        +++ b/a
        @@ -1 +1,2 @@
         one
        +uno
        diff --git a/d/b b/e/c
        rename from d/b
        rename to e/c
        diff --git a/link b/link
        index 1..2 120000
        --- a/link
        +++ b/link
        @@ -1 +1 @@
        -a
        \ No newline at end of file
        +e/c
        \ No newline at end of file
  - patch: {strip: 0, diff: "--- crlf\n+++ crlf\n@@ -1,2 +1,2 @@\n-x\r\n+z\r\n y\n\\ No newline at end of file\n"}
`)
	if got := r.run(t); got.Failed != nil {
		t.Fatalf("failed: %+v", got.Failed)
	}
	want := "one\nuno\ntwo\nz\r\ny755 a\n777 crlf e/c\n"
	got := sandboxtest.Run(t, r.box, `cat a link crlf; stat -c '%a %n' a; printf '%s ' "$(stat -c %a link)" *[!ak]f; readlink link; test ! -e d`)
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A diff that does not fit fails its step, names what, and leaves nothing of itself; a retry meets the tree before.
func TestRun_PatchRefused(t *testing.T) {
	for name, c := range map[string]struct{ setup, diff, want string }{
		"Context": {":", `--- a/d/b\n+++ b/d/b\n@@ -1 +1 @@\n-two\n+zwei\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-other\n+uno\n`, `patch "a": hunk 1 (@@ -1,1 +1,1 @@): its lines are not in the file as the hunk has them: nothing was changed`},
		"Link":    {"ln -s d l", `--- a/l/b\n+++ b/l/b\n@@ -1 +1 @@\n-two\n+zwei\n`, `patch "l/b": lies behind a symbolic link, which no patch follows: nothing was changed`},
		"Outside": {"ln -s /tmp l; touch /tmp/f", `diff --git a/l/g b/l/g\nnew file mode 100644\n`, `patch "l/g": lies behind a symbolic link, which no patch follows: nothing was changed`},
		"TooLong": {":", `--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+uno\n--- /dev/null\n+++ b/` + strings.Repeat("n", 256) + `\n@@ -0,0 +1 @@\n+x\n`, `patch "` + strings.Repeat("n", 256) + `": isolate: look at "` + strings.Repeat("n", 256) + `": file name too long`},
		"Dir":     {":", `--- a/d\n+++ b/d\n@@ -1 +1 @@\n-x\n+y\n`, `patch "d": is a directory: nothing was changed`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "on_failure: keep\nsteps:\n  - run: '"+c.setup+"'\n  - {id: p, patch: {diff: \""+c.diff+"\"}, retry: {limit: 1}}\n")
			before := sandboxtest.Run(t, r.box, "cat a d/b")
			got := r.run(t)
			if got.Failed == nil || got.Failed.Message != c.want || got.Failed.Result.Cause != "start" {
				t.Fatalf("failed: %+v, want %s", got.Failed, c.want)
			}
			if after := sandboxtest.Run(t, r.box, "cat a d/b; find . -name '.warmfleet*'"); after != before {
				t.Errorf("tree %q, want %q", after, before)
			}
			if facts := strings.Join(r.facts(t), "\n"); !strings.Contains(facts, "rolled_back p\nstep_started p\nstep_finished p failed") {
				t.Errorf("events:\n%s", facts)
			}
		})
	}
}
