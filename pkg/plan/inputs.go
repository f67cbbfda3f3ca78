package plan

import (
	"strings"
)

// inputPrefix begins the variable that an input arrives in.
const inputPrefix = "WARMFLEET_INPUT_"

// inputVariable is the variable of an input: pkg-name arrives as WARMFLEET_INPUT_PKG_NAME.
func inputVariable(name string) string {
	return inputPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// effective is the value that counts, nil when there is none.
func (in Input) effective() *string {
	if in.Value != nil {
		return in.Value
	}
	return in.Default
}

// Bind gives the inputs their values, beside those already in the plan. The error is an
// *Errors with every input that is unknown, that no variable can hold, or that is required
// and has no value; then nothing was set. Bind(nil) checks the required ones alone.
func (p *Plan) Bind(values map[string]string) error {
	r := newReport("")
	for _, name := range sortedKeys(values) {
		at := join("inputs", name)
		if _, declared := p.Inputs[name]; !declared {
			r.addf(at, "the plan has no such input; %s", hint(name, sortedKeys(p.Inputs)))
			continue
		}
		if problem := envValueProblem(inputVariable(name), values[name]); problem != "" {
			r.addf(at, "%s", problem)
		}
	}
	for _, name := range sortedKeys(p.Inputs) {
		in := p.Inputs[name]
		if _, given := values[name]; !given && in.Required && in.effective() == nil {
			r.addf(join("inputs", name), "is required: give it with --input %s=VALUE", name)
		}
	}
	if err := r.err(); err != nil {
		return err
	}
	for name, value := range values {
		in := p.Inputs[name]
		in.Value = &value
		p.Inputs[name] = in
	}
	return nil
}
