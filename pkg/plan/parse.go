package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
)

// Option changes what a plan is checked against.
type Option func(*options)

type options struct {
	resource  *Resource
	strategy  Strategy
	apply     Apply
	submitted bool
}

// WithResource replaces the plan's resource, as --path and --repo do.
func WithResource(r Resource) Option { return func(o *options) { o.resource = &r } }

// WithStrategy replaces the plan's strategy; "" leaves it.
func WithStrategy(s Strategy) Option { return func(o *options) { o.strategy = s } }

// WithApply replaces what the plan says about applying; "" leaves it.
func WithApply(a Apply) Option { return func(o *options) { o.apply = a } }

// Submitted demands what a published plan needs: an absolute path with its host, and a value
// for every required input.
func Submitted() Option { return func(o *options) { o.submitted = true } }

// ParseYAML reads and validates a plan; file is only shown in errors. The error is an
// *Errors with every fault. Defaults are not filled in: Defaults does that.
func ParseYAML(file string, src []byte, opts ...Option) (*Plan, error) {
	return parse(file, src, readYAML, opts)
}

// ParseJSON is ParseYAML for the form that is published.
func ParseJSON(src []byte, opts ...Option) (*Plan, error) {
	return parse("", src, readJSON, opts)
}

func parse(file string, src []byte, read func(*report, []byte) *node, opts []Option) (*Plan, error) {
	r, p := newReport(file), new(Plan)
	if !r.decode(src, read, reflect.ValueOf(p).Elem()) {
		return nil, r.err()
	}
	check(p, r, opts)
	if err := r.err(); err != nil {
		return nil, err
	}
	return p, nil
}

// decode fills v from a text, and reports false where no value could be read at all.
func (r *report) decode(src []byte, read func(*report, []byte) *node, v reflect.Value) bool {
	if !checkText(r, src) {
		return false
	}
	n := read(r, src)
	if n == nil {
		return false
	}
	if n.shape == null {
		r.addf("", "%s", r.empty)
		return false
	}
	(&decoder{r}).value(v, n, "")
	return true
}

// Validate checks a plan that was built in Go; faults have no line and column.
func (p *Plan) Validate(opts ...Option) error {
	r := newReport("")
	check(p, r, opts)
	return r.err()
}

// check lays the options over the plan and reports every fault of the result.
func check(p *Plan, r *report, opts []Option) {
	var o options
	for _, set := range opts {
		set(&o)
	}
	if o.resource != nil {
		p.Resource = o.resource
		r.forget("resource")
	}
	if o.strategy != "" {
		p.Strategy = o.strategy
		r.forget("strategy")
	}
	if o.apply != "" {
		p.Apply = o.apply
		r.forget("apply")
	}
	(&checker{r, p, o}).plan()
	if len(r.errs.List) > 0 {
		return
	}
	if err := CheckBody(p.Canonical()); err != nil {
		r.errs.tooLarge = true
		r.addf("", "%v", err)
	}
}

// CheckBody refuses a body of more than BodyLimit bytes, naming both numbers; the error
// matches ErrTooLarge.
func CheckBody(body []byte) error {
	if len(body) > BodyLimit {
		return &sizeError{len(body)}
	}
	return nil
}

type sizeError struct{ bytes int }

func (e *sizeError) Error() string {
	return fmt.Sprintf("the plan has %d bytes as JSON, at most %d are accepted: put large content into the repository instead", e.bytes, BodyLimit)
}

func (e *sizeError) Is(target error) bool { return target == ErrTooLarge || target == ErrInvalid }

// Canonical is the plan as it is published: JSON with fixed field order, sorted keys and no
// escaping beyond what JSON needs. Equal plans have equal bytes, which is how a second
// submission of an id is recognised. It panics on a number that JSON lacks (NaN, infinity),
// which no parsed or validated plan holds.
func (p *Plan) Canonical() []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(p); err != nil {
		panic("plan: encode plan: " + err.Error())
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}
