package plan

import "testing"

func TestParse_PatchFaults(t *testing.T) {
	src := `version: 1
resource: {path: /a}
steps:
  - patch:
      strip: 1
      diff: |
        --- a/ok
        +++ b/ok
        @@ -1 +1 @@
        -x
        +y
        --- a/../out
        +++ b/../out
        @@ -1 +1 @@
        -x
        +y
        diff --git a/x b/y
        rename from x
        rename to .warmfleet-apply/y
  - patch: {diff: "--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-x\n+y\n"}
  - patch: {strip: 0, diff: "--- /etc/passwd\n+++ /etc/passwd\n@@ -1 +1 @@\n-x\n+y\n"}
  - patch: {strip: -1, diff: "nothing"}
  - patch: {diff: nothing}
  - patch: {diff: ""}
  - patch: {strip: 1}
`
	_, err := ParseYAML("p.yaml", []byte(src))
	checkError(t, err, `p.yaml:6:13: steps[0].patch.diff: line 6 of the diff: "../out" could leave the workspace: write it without ..`)
	checkError(t, err, `p.yaml:6:13: steps[0].patch.diff: line 11 of the diff: ".warmfleet-apply/y" lies in .warmfleet-apply, which is left out of every checkpoint: choose another place`)
	checkError(t, err, `p.yaml:20:19: steps[1].patch.diff: line 3 of the diff: hunk has other numbers of lines than its header says: correct the counts behind the commas`)
	checkError(t, err, `p.yaml:21:29: steps[2].patch.diff: line 1 of the diff: "/etc/passwd" is absolute: give a path relative to the workspace`)
	checkError(t, err, `p.yaml:22:20: steps[3].patch.strip: -1 is out of range: give a number from 0 to 100`)
	checkError(t, err, `p.yaml:23:19: steps[4].patch.diff: line 1 of the diff: holds no diff`)
	checkError(t, err, `steps[5].patch.diff: is empty`)
	checkError(t, err, `steps[6].patch.diff: is missing`)
}
