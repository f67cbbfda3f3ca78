package patch_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmfleet/warmfleet/pkg/plan/patch"
)

// files is a tree: "@" before a content makes a link, "!" an executable file.
type files map[string]string

func (f files) lookup(p string) (*patch.File, error) {
	content, ok := f[p]
	switch {
	case !ok:
		return nil, nil
	case strings.HasPrefix(content, "@"):
		return &patch.File{Link: true, Mode: 0o777, Content: []byte(content[1:])}, nil
	case strings.HasPrefix(content, "!"):
		return &patch.File{Mode: 0o755, Content: []byte(content[1:])}, nil
	}
	return &patch.File{Mode: 0o644, Content: []byte(content)}, nil
}

// after is the tree once the changes are made.
func (f files) after(changes []patch.Change) files {
	out := files{}
	for p, content := range f {
		out[p] = content
	}
	for _, c := range changes {
		switch {
		case c.File == nil:
			delete(out, c.Path)
		case c.File.Link:
			out[c.Path] = "@" + string(c.File.Content)
		case c.File.Mode&0o100 != 0:
			out[c.Path] = "!" + string(c.File.Content)
		default:
			out[c.Path] = string(c.File.Content)
		}
	}
	return out
}

func parse(t *testing.T, diff string, strip int) *patch.Set {
	t.Helper()
	s, faults := patch.Parse(diff, patch.Options{Strip: strip})
	if len(faults) > 0 {
		t.Fatalf("parse: %v", faults)
	}
	return s
}

func TestSet_Apply(t *testing.T) {
	twenty := lines(1, 20)
	for name, c := range map[string]struct {
		diff     string
		strip    int
		in, want files
	}{
		"Hunks": {
			diff:  "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n-1\n+one\n 2\n 3\n@@ -18,3 +18,4 @@ func\n 18\n 19\n 20\n+21\n",
			strip: 1, in: files{"f": twenty}, want: files{"f": "one\n" + lines(2, 20) + "21\n"},
		},
		"Offset": {
			diff:  "--- a/f\n+++ b/f\n@@ -8,3 +8,3 @@\n 8\n-9\n+nine\n 10\n",
			strip: 1, in: files{"f": "x\ny\nz\n" + twenty}, want: files{"f": "x\ny\nz\n" + lines(1, 8) + "nine\n" + lines(10, 20)},
		},
		"ClosestOfMany": {
			diff:  "--- f\n+++ f\n@@ -6,2 +6,2 @@\n-a\n+A\n b\n",
			strip: 0, in: files{"f": "a\nb\n1\n2\n3\n4\n5\na\nb\n6\n7\n8\na\nb\n9\n"}, want: files{"f": "a\nb\n1\n2\n3\n4\n5\nA\nb\n6\n7\n8\na\nb\n9\n"},
		},
		"CRLF":               {"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-x\r\n+y\r\n z\r\n", 1, files{"f": "x\r\nz\r\n"}, files{"f": "y\r\nz\r\n"}},
		"BOM":                {"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-\ufeffx\n+\ufeffy\n", 1, files{"f": "\ufeffx\n"}, files{"f": "\ufeffy\n"}},
		"LosesNewline":       {"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+x\n\\ No newline at end of file\n", 1, files{"f": "x\n"}, files{"f": "x"}},
		"GainsNewline":       {"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+x\n", 1, files{"f": "x"}, files{"f": "x\n"}},
		"NoNewlineBoth":      {"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-w\n+v\n x\n\\ No newline at end of file\n", 1, files{"f": "w\nx"}, files{"f": "v\nx"}},
		"EditorAtePatchEnd":  {"--- a/f\n+++ b/f\n@@ -1,2 +1,3 @@\n x\n+y\n", 1, files{"f": "x\n\n"}, files{"f": "x\ny\n\n"}},
		"NoFinalNewline":     {"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y", 1, files{"f": "x\n"}, files{"f": "y\n"}},
		"Mail":               {"From: x\nSubject: y\n\n--- really\ntext\n---\n f | 2 +-\n\ndiff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n-- \n2.47.0\n", 1, files{"f": "x\n"}, files{"f": "y\n"}},
		"New":                {"diff --git a/d/n b/d/n\nnew file mode 100755\nindex 0000000..7898192\n--- /dev/null\n+++ b/d/n\n@@ -0,0 +1 @@\n+a\n", 1, files{}, files{"d/n": "!a\n"}},
		"NewEmpty":           {"diff --git a/e b/e\nnew file mode 100644\nindex 0000000..e69de29\n", 1, files{}, files{"e": ""}},
		"NewTraditional":     {"--- /dev/null\n+++ b/n\n@@ -0,0 +1,2 @@\n+a\n+b\n", 1, files{}, files{"n": "a\nb\n"}},
		"Deleted":            {"diff --git a/f b/f\ndeleted file mode 100644\nindex 7898192..0000000\n--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", 1, files{"f": "a\n", "g": ""}, files{"g": ""}},
		"DeletedEmpty":       {"diff --git a/f b/f\ndeleted file mode 100644\nindex e69de29..0000000\n", 1, files{"f": ""}, files{}},
		"DeletedTraditional": {"--- a/f\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n", 1, files{"f": "a\nb\n"}, files{}},
		"FillsEmpty":         {"--- a/f\n+++ b/f\n@@ -0,0 +1 @@\n+a\n", 1, files{"f": ""}, files{"f": "a\n"}},
		"Empties":            {"--- a/f\n+++ b/f\n@@ -1 +0,0 @@\n-a\n", 1, files{"f": "a\n"}, files{"f": ""}},
		"Mode":               {"diff --git a/f b/f\nold mode 100644\nnew mode 100755\n", 1, files{"f": "a"}, files{"f": "!a"}},
		"ModeBack":           {"diff --git a/f b/f\nold mode 100755\nnew mode 100644\n", 1, files{"f": "!a"}, files{"f": "a"}},
		"KeepsMode":          {"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", 1, files{"f": "!a\n"}, files{"f": "!b\n"}},
		"Rename":             {"diff --git a/f b/g\nsimilarity index 100%\nrename from f\nrename to g\n", 1, files{"f": "a"}, files{"g": "a"}},
		"RenameAndChange":    {"diff --git a/f b/d/g\nsimilarity index 50%\nrename from f\nrename to d/g\n--- a/f\n+++ b/d/g\n@@ -1,2 +1,2 @@\n-a\n+A\n b\n", 1, files{"f": "a\nb\n"}, files{"d/g": "A\nb\n"}},
		"Swap":               {"diff --git a/f b/g\nrename from f\nrename to g\ndiff --git a/g b/f\nrename from g\nrename to f\n", 1, files{"f": "1", "g": "2"}, files{"f": "2", "g": "1"}},
		"Chain":              {"diff --git a/f b/g\nrename from f\nrename to g\ndiff --git a/g b/h\nrename from g\nrename to h\n", 1, files{"f": "1", "g": "2"}, files{"g": "1", "h": "2"}},
		"CopyOfTheOriginal":  {"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+A\ndiff --git a/f b/g\nsimilarity index 100%\ncopy from f\ncopy to g\n", 1, files{"f": "a\n"}, files{"f": "A\n", "g": "a\n"}},
		"Twice":              {"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-b\n+c\n", 1, files{"f": "a\n"}, files{"f": "c\n"}},
		"NewLink":            {"diff --git a/l b/l\nnew file mode 120000\nindex 0000000..1\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+../x\n\\ No newline at end of file\n", 1, files{}, files{"l": "@../x"}},
		"ChangedLink":        {"diff --git a/l b/l\nindex 1..2 120000\n--- a/l\n+++ b/l\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+y\n\\ No newline at end of file\n", 1, files{"l": "@x"}, files{"l": "@y"}},
		"FileToLink": {
			"diff --git a/f b/f\ndeleted file mode 100644\nindex 1..0\n--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\ndiff --git a/f b/f\nnew file mode 120000\nindex 0..1\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+t\n\\ No newline at end of file\n",
			1,
			files{"f": "a\n"},
			files{"f": "@t"},
		},
		"QuotedOctal":    {"diff --git \"a/\\303\\244\\377 \\\"q\\\\\" \"b/\\303\\244\\377 \\\"q\\\\\"\nold mode 100644\nnew mode 100755\n", 1, files{"ä\xff \"q\\": "x"}, files{"ä\xff \"q\\": "!x"}},
		"QuotedTab":      {"diff --git \"a/a\\tb\" \"b/a\\tb\"\n--- \"a/a\\tb\"\n+++ \"b/a\\tb\"\n@@ -1 +1 @@\n-x\n+y\n", 1, files{"a\tb": "x\n"}, files{"a\tb": "y\n"}},
		"Spaces":         {"diff --git a/my file b/my file\n--- a/my file\t\n+++ b/my file\t\n@@ -1 +1 @@\n-x\n+y\n", 1, files{"my file": "x\n"}, files{"my file": "y\n"}},
		"GnuTimes":       {"--- old/f\t2024-01-01 00:00:00.000000000 +0000\n+++ new/f\t2024-01-02 00:00:00.000000000 +0000\n@@ -1 +1 @@\n-x\n+y\n", 1, files{"f": "x\n"}, files{"f": "y\n"}},
		"NoPrefix":       {"diff --git sub/f sub/f\nindex 1..2 100644\n--- sub/f\n+++ sub/f\n@@ -1 +1 @@\n-x\n+y\n", 0, files{"sub/f": "x\n"}, files{"sub/f": "y\n"}},
		"NoPrefixMode":   {"diff --git my f my f\nold mode 100644\nnew mode 100755\n", 0, files{"my f": "x"}, files{"my f": "!x"}},
		"NoPrefixRename": {"diff --git f g\nrename from f\nrename to g\n", 0, files{"f": "x"}, files{"g": "x"}},
		"StripTwo":       {"diff --git a/w/f b/w/g\nrename from w/f\nrename to w/g\n", 2, files{"f": "x"}, files{"g": "x"}},
		"BinaryDelta":    {delta, 1, files{"b": lines(1, 400)}, files{"b": lines(1, 199) + "two hundred\n" + lines(201, 400)}},
		"LooksLikeAHeader": {
			"--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n--- a/x\n+++ b/x\n @@ -1 +1 @@\n diff --git a/q b/q\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n-x\n+y\n", 1,
			files{"f": "-- a/x\n@@ -1 +1 @@\ndiff --git a/q b/q\n", "g": "x\n"},
			files{"f": "++ b/x\n@@ -1 +1 @@\ndiff --git a/q b/q\n", "g": "y\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			changes, err := parse(t, c.diff, c.strip).Apply(c.in.lookup)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.in.after(changes), c.want); diff != "" {
				t.Errorf("got, want: %s", diff)
			}
		})
	}
}

func lines(from, to int) string {
	var b strings.Builder
	for i := from; i <= to; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// What does not fit says where, and there are no changes.
func TestSet_ApplyRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		diff string
		in   files
		want string
	}{
		"OtherContext":    {"--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n 1\n-2\n+two\n 3\n@@ -5,3 +5,3 @@\n 5\n-6\n+six\n 8\n", files{"f": lines(1, 9)}, `"f": hunk 2 (@@ -5,3 +5,3 @@): its lines are not in the file as the hunk has them`},
		"OtherLineEnds":   {"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n", files{"f": "x\r\n"}, `"f": hunk 1`},
		"NoFuzz":          {"--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n 1 \n-2\n+two\n 3\n", files{"f": lines(1, 9)}, `"f": hunk 1`},
		"NotAtTheEnd":     {"--- a/f\n+++ b/f\n@@ -2,2 +2,3 @@\n 2\n 3\n+4\n", files{"f": lines(1, 9)}, `"f": hunk 1`},
		"NotAtTheTop":     {"--- a/f\n+++ b/f\n@@ -1,1 +1,2 @@\n+0\n 1\n", files{"f": "head\n" + lines(1, 9)}, `"f": hunk 1`},
		"Missing":         {"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n", files{}, `"f": does not exist`},
		"Exists":          {"--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+y\n", files{"f": ""}, `"f": exists already`},
		"RenameOnto":      {"diff --git a/f b/g\nrename from f\nrename to g\n", files{"f": "", "g": ""}, `"g": exists already`},
		"TwiceNew":        {"--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+y\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+y\n", files{}, `"f": exists already`},
		"AfterDeletion":   {"diff --git a/f b/g\nrename from f\nrename to g\ndiff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n", files{"f": "x\n"}, `"f": is changed after the diff itself took it away`},
		"DeletesPart":     {"--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", files{"f": "x\ny\n"}, `"f": hunk 1`},
		"DeletesUnread":   {"diff --git a/f b/f\ndeleted file mode 100644\n", files{"f": "x\n"}, `"f": the diff deletes it, but not all that it holds now`},
		"LinkForAFile":    {"diff --git a/f b/f\nindex 1..2 100644\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n", files{"f": "@x"}, `"f": is a symbolic link, the diff is for a regular file`},
		"FileForALink":    {"diff --git a/f b/f\nindex 1..2 120000\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+y\n\\ No newline at end of file\n", files{"f": "x"}, `"f": is a regular file, the diff is for a symbolic link`},
		"ThroughALink":    {"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-secret\n+y\n", files{"f": "@/etc/shadow"}, `"f": hunk 1`},
		"OtherBinaryFile": {delta, files{"b": "short"}, `"b": the binary delta is for another file than the one of 5 bytes that is there`},
	} {
		t.Run(name, func(t *testing.T) {
			changes, err := parse(t, c.diff, 1).Apply(c.in.lookup)
			if !errors.Is(err, patch.ErrConflict) || !strings.HasPrefix(err.Error(), c.want) || changes != nil {
				t.Errorf("got %v, %v, want %s", changes, err, c.want)
			}
		})
	}
}

// delta is what git 2.47 made of seq 1 400 with line 200 replaced, as a binary file.
const delta = `diff --git a/b b/b
index 7b5d34d5cf4229e05f566b7e2b9f8ea113e2efba..130b842f40dd7f3a996c77e5fe9804af99d1c15d 100644
GIT binary patch
delta 24
fcmcb@eTRF)1}5&3@_dDi(!7+S)RfJenG~4;dsYb~

`

func TestParse_Faults(t *testing.T) {
	inside := func(p string) string {
		if strings.HasPrefix(p, "/") || strings.Contains("/"+p+"/", "/../") {
			return "leaves"
		}
		return ""
	}
	for name, c := range map[string]struct {
		diff string
		want []patch.Fault
	}{
		"Nothing":         {"hello\n", []patch.Fault{{1, "holds no diff: give file headers (diff --git, or --- and +++) and hunks (@@ -1,2 +1,3 @@)"}}},
		"Bare":            {"@@ -1 +1 @@\n-x\n+y\n", []patch.Fault{{1, "hunk without a file header before it: write --- and +++ lines"}}},
		"NoHunk":          {"--- a/f\n+++ b/f\n", []patch.Fault{{1, "--- and +++ lines without a hunk after them: hunks begin with @@ -1,2 +1,3 @@"}}},
		"Ellipsis":        {"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ ... @@\n-x\n+y\n", []patch.Fault{{2, "--- and +++ lines without a hunk after them: hunks begin with @@ -1,2 +1,3 @@"}, {4, "hunk header cannot be read: write @@ -1,2 +1,3 @@ with the line numbers and counts of both sides"}}},
		"Miscounted":      {"text\n--- a/f\n+++ b/f\n@@ -1,9 +1,9 @@\n 1\n-2\n+two\n", []patch.Fault{{4, "hunk has other numbers of lines than its header says: correct the counts behind the commas"}}},
		"EachFile":        {"--- a/../f\n+++ b/../f\n@@ -1 +1 @@\n-x\n+y\n--- a/ok\n+++ b/ok\n@@ -1 +1 @@\n-x\n+y\n--- a//g\n+++ b/g/../../h\n@@ -1 +1 @@\n-x\n+y\n", []patch.Fault{{1, "leaves"}, {11, "leaves"}}},
		"OutsideRename":   {"diff --git a/f b/g\nrename from f\nrename to ../g\n", []patch.Fault{{1, "leaves"}}},
		"Strip":           {"--- f\n+++ f\n@@ -1 +1 @@\n-x\n+y\n", []patch.Fault{{1, `strip 1 leaves nothing of "f": give another strip`}}},
		"Submodule":       {"diff --git a/m b/m\nindex 1..2 160000\n--- a/m\n+++ b/m\n@@ -1 +1 @@\n-x\n+y\n", []patch.Fault{{1, "changes a submodule, which a patch cannot: run git in a step"}}},
		"OddMode":         {"diff --git a/m b/m\nold mode 100644\nnew mode 20666\n", []patch.Fault{{1, "mode 20666 is none of a file or link: git writes 100644, 100755 or 120000"}}},
		"BinaryUnsaid":    {"diff --git a/b b/b\nindex 1..2 100644\nBinary files a/b and b/b differ\n", []patch.Fault{{1, "says that binary files differ, but not how: make it with git diff --binary"}}},
		"BinaryDamaged":   {"diff --git a/b b/b\nindex 1..2 100644\nGIT binary patch\nliteral 3\nKcmZQzWMT#Y01f~L\n\n", []patch.Fault{{1, "binary data is damaged: unexpected EOF"}}},
		"Unchanged":       {"diff --git a/f b/f\nindex 1..2 100644\n", []patch.Fault{{1, "changes nothing: it has no hunk, no binary data and no new mode"}}},
		"LineAfterTheEnd": {"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-x\n+y\n\\ No newline at end of file\n z\n", []patch.Fault{{1, "hunk 1: a line follows the one that ends its file without a newline"}}},
	} {
		t.Run(name, func(t *testing.T) {
			set, got := patch.Parse(c.diff, patch.Options{Strip: 1, Check: inside})
			if set != nil {
				t.Error("a set in spite of faults")
			}
			if diff := cmp.Diff(got, c.want); diff != "" {
				t.Errorf("got, want: %s", diff)
			}
		})
	}
}
