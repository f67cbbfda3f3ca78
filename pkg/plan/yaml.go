package plan

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// aliasBudget bounds what aliases may repeat, in bytes of text plus a share for each value:
// a document of a kilobyte can otherwise stand for gigabytes.
const aliasBudget = BodyLimit

// readYAML reads one YAML document; nil means that a fault was reported.
func readYAML(r *report, src []byte) *node {
	loader, err := yaml.NewLoader(bytes.NewReader(src))
	if err != nil {
		r.addf("", "the %s can't be read: %v", r.noun, err)
		return nil
	}
	var doc, second yaml.Node
	if err := loader.Load(&doc); err != nil {
		reportYAML(r, src, err)
		return nil
	}
	switch err := loader.Load(&second); {
	case err == nil:
		r.addAt(position{second.Line, second.Column}, "", `a second document begins here: a %s is one document, remove what follows "---"`, r.noun)
		return nil
	case !errors.Is(err, io.EOF):
		reportYAML(r, src, err)
		return nil
	}
	if len(doc.Content) != 1 {
		r.addf("", "%s", r.empty)
		return nil
	}
	in := &yamlReader{r: r, open: map[*yaml.Node]bool{}}
	n := in.value(doc.Content[0], 0)
	if in.failed {
		return nil
	}
	return n
}

// reportYAML turns the parser's error into one line that says what to do.
func reportYAML(r *report, src []byte, err error) {
	if errors.Is(err, io.EOF) {
		r.addf("", "%s", r.empty)
		return
	}
	var load *yaml.LoadError
	if !errors.As(err, &load) {
		r.addf("", "the %s is not valid YAML: %v", r.noun, err)
		return
	}
	at := position{load.Mark.Line, load.Mark.Column}
	lines := bytes.Split(src, []byte("\n"))
	if i := at.line - 1; i >= 0 && i < len(lines) && bytes.HasPrefix(bytes.TrimLeft(lines[i], " "), []byte("\t")) {
		r.addAt(at, "", "this line is indented with a tab: YAML allows only spaces")
		return
	}
	r.addAt(at, "", "the %s is not valid YAML: %s", r.noun, load.Message)
}

type yamlReader struct {
	r *report
	// open are the alias targets being expanded, to find one that contains itself.
	open   map[*yaml.Node]bool
	spent  int
	values int
	failed bool
}

// fail reports the first fault of structure; one of them makes the rest meaningless.
func (in *yamlReader) fail(n *yaml.Node, format string, args ...any) *node {
	if !in.failed {
		in.failed = true
		in.r.addAt(position{n.Line, n.Column}, "", format, args...)
	}
	return &node{shape: null}
}

func (in *yamlReader) value(y *yaml.Node, depth int) *node {
	if in.failed {
		return &node{shape: null}
	}
	if depth > maxDepth {
		return in.fail(y, "the %s is nested more than %d levels deep", in.r.noun, maxDepth)
	}
	if in.values++; in.values > maxValues {
		return in.fail(y, "the %s has more than %d values", in.r.noun, maxValues)
	}
	if len(in.open) > 0 {
		if in.spent += len(y.Value) + 16; in.spent > aliasBudget {
			return in.fail(y, "aliases repeat more than %d bytes: write the values out or use fewer", aliasBudget)
		}
	}
	n := &node{at: position{y.Line, y.Column}}
	switch y.Kind {
	case yaml.AliasNode:
		return in.alias(y, depth)
	case yaml.ScalarNode:
		in.scalar(n, y)
	case yaml.SequenceNode:
		n.shape = list
		for _, item := range y.Content {
			n.items = append(n.items, in.value(item, depth+1))
		}
	case yaml.MappingNode:
		n.shape = object
		for i := 0; i+1 < len(y.Content); i += 2 {
			in.member(n, y.Content[i], y.Content[i+1], depth)
		}
	}
	return n
}

func (in *yamlReader) member(n *node, key, value *yaml.Node, depth int) {
	if key.Kind != yaml.ScalarNode {
		in.fail(key, "a key must be plain text")
		return
	}
	n.members = append(n.members, member{key.Value, position{key.Line, key.Column}, in.value(value, depth+1)})
}

// alias expands y; faults inside are shown where the alias stands.
func (in *yamlReader) alias(y *yaml.Node, depth int) *node {
	if y.Alias == nil || in.open[y.Alias] {
		return in.fail(y, "the alias *%s contains itself", y.Value)
	}
	in.open[y.Alias] = true
	defer delete(in.open, y.Alias)
	n := *in.value(y.Alias, depth+1)
	n.at = position{y.Line, y.Column}
	return &n
}

func (in *yamlReader) scalar(n *node, y *yaml.Node) {
	n.text = y.Value
	switch tag := y.ShortTag(); tag {
	case "!!str", "!!timestamp", "!!merge":
		n.shape = text
	case "!!null":
		n.shape = null
	case "!!bool":
		n.shape, n.text = truth, strings.ToLower(y.Value)
		if n.text != "true" && n.text != "false" {
			in.fail(y, "%s is neither true nor false", quote(y.Value))
		}
	case "!!int", "!!float":
		n.shape, n.text = number, decimal(y.Value)
	default:
		in.fail(y, "the tag %s means nothing in a %s: remove it", quote(tag), in.r.noun)
	}
}

// decimal writes a YAML number as JSON would; what is no finite number stays as it is.
func decimal(text string) string {
	digits := strings.ReplaceAll(text, "_", "")
	if i, err := strconv.ParseInt(digits, 0, 64); err == nil {
		return strconv.FormatInt(i, 10)
	}
	if f, err := strconv.ParseFloat(digits, 64); err == nil {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return text
}
