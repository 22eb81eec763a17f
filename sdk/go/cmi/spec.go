package cmi

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
	"google.golang.org/grpc/codes"
)

// Defaulter is a Spec, by its pointer, with values for the fields that a user leaves out.
type Defaulter interface {
	SetDefaults()
}

// Validator is a Spec with rules that its type does not express. The package calls it before a create and an update:
// a VM must be found and deleted when its size no longer exists. It returns [Invalid] or [OutOfRange].
type Validator interface {
	Validate() error
}

// OpenSpec is a Spec whose back end checks the fields itself. The driver publishes a schema that allows every field.
type OpenSpec map[string]json.RawMessage

// specs decodes provider specs.
type specs[Spec any] struct{ *schemas }

// decoded is a provider spec.
type decoded[Spec any] struct {
	spec Spec
	tags map[string]string
	// digest identifies everything but the tags and the fields that Update changes.
	digest string
}

func newSpecs[Spec any]() (specs[Spec], error) {
	made, err := schemasFor(reflect.TypeFor[Spec]())
	return specs[Spec]{made}, err
}

func invalid(format string, arguments ...any) *Error {
	return newError(codes.InvalidArgument, format, arguments)
}

// decode reads a spec in full before anything is done. Names are compared with their case, unknown fields and null are
// refused.
func (s specs[Spec]) decode(text []byte) (decoded[Spec], error) {
	read, _, err := s.read(text)
	return read, err
}

// decodeNew also checks the values, for a create and an update. A number that its type cannot hold is INVALID_ARGUMENT, and
// only then may one outside of its range be OUT_OF_RANGE.
func (s specs[Spec]) decodeNew(text []byte) (decoded[Spec], error) {
	read, object, err := s.read(text)
	if err != nil {
		return read, err
	}
	if err := s.values.Validate(object); err != nil {
		return read, problem(err)
	}
	return read, validate(&read.spec)
}

// decodeAny accepts a spec without fields, too: a Cluster asks for zones before it has a machine.
func (s specs[Spec]) decodeAny(text []byte) (decoded[Spec], error) {
	object, err := parse(text)
	if err != nil {
		return decoded[Spec]{}, err
	}
	if _, tagged := object[tagsField]; len(object) == 0 || len(object) == 1 && tagged {
		return decoded[Spec]{}, nil
	}
	return s.decode(text)
}

// read returns the spec, and its user's fields as they are in the JSON object.
func (s specs[Spec]) read(text []byte) (read decoded[Spec], object map[string]any, err error) {
	object, err = parse(text)
	if err != nil {
		return read, nil, err
	}
	if err := s.types.Validate(object); err != nil {
		return read, nil, problem(err)
	}
	read.tags = tagsOf(object)
	delete(object, tagsField)
	fields, err := json.Marshal(object)
	if err != nil {
		return read, nil, Internal("cannot encode the ProviderSpec").Because(err)
	}
	if defaulter, ok := any(&read.spec).(Defaulter); ok {
		defaulter.SetDefaults()
	}
	if err := json.Unmarshal(fields, &read.spec); err != nil {
		return read, nil, wrongType(err)
	}
	read.digest, err = s.digest(object)
	return read, object, err
}

func parse(text []byte) (map[string]any, error) {
	if !utf8.Valid(text) {
		return nil, invalid("ProviderSpec is not UTF-8")
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, invalid("ProviderSpec is not JSON").Because(err)
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, invalid("ProviderSpec is not a JSON object")
	}
	return object, nil
}

func tagsOf(object map[string]any) map[string]string {
	found, _ := object[tagsField].(map[string]any)
	tags := make(map[string]string, len(found))
	for name, value := range found {
		tags[name] = fmt.Sprint(value) // the schema allows texts only
	}
	return tags
}

func validate(spec any) error {
	validator, ok := spec.(Validator)
	if !ok {
		return nil
	}
	err := validator.Validate()
	var known *Error
	if err != nil && !errors.As(err, &known) {
		return invalid("ProviderSpec: %v", err)
	}
	return err
}

func wrongType(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return invalid("ProviderSpec: %v", err)
	}
	return Invalid("/"+strings.ReplaceAll(wrong.Field, ".", "/"), "must be %s, not %s", wrong.Type, wrong.Value)
}

func (s specs[Spec]) digest(object map[string]any) (string, error) {
	fixed := object
	for _, pointer := range s.hot {
		fixed = without(fixed, strings.Split(pointer, "/")[1:])
	}
	text, err := json.Marshal(fixed)
	if err != nil {
		return "", Internal("cannot encode the ProviderSpec").Because(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), nil
}

// without returns a copy that lacks the field at a path.
func without(object map[string]any, path []string) map[string]any {
	key := strings.NewReplacer("~1", "/", "~0", "~").Replace(path[0])
	kept := maps.Clone(object)
	inner, nested := kept[key].(map[string]any)
	switch {
	case len(path) == 1:
		delete(kept, key)
	case nested:
		kept[key] = without(inner, path[1:])
	}
	return kept
}

// problem returns the first violation of a schema by its place. An unknown field goes first: with it, a misspelled name of
// a required field is named rather than the field.
func problem(err error) error {
	var violation *jsonschema.ValidationError
	if !errors.As(err, &violation) {
		return invalid("ProviderSpec: %v", err)
	}
	all := leaves(violation)
	slices.SortStableFunc(all, func(a, b *jsonschema.ValidationError) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(pointerTo(a), pointerTo(b)))
	})
	return describe(all[0])
}

func rank(violation *jsonschema.ValidationError) int {
	if _, unknown := violation.ErrorKind.(*kind.AdditionalProperties); unknown {
		return 0
	}
	return 1
}

func leaves(violation *jsonschema.ValidationError) []*jsonschema.ValidationError {
	if len(violation.Causes) == 0 {
		return []*jsonschema.ValidationError{violation}
	}
	var all []*jsonschema.ValidationError
	for _, cause := range violation.Causes {
		all = append(all, leaves(cause)...)
	}
	return all
}

func pointerTo(violation *jsonschema.ValidationError) string {
	var pointer strings.Builder
	for _, name := range violation.InstanceLocation {
		pointer.WriteString("/" + escaped(name))
	}
	switch found := violation.ErrorKind.(type) {
	case *kind.Required:
		pointer.WriteString("/" + escaped(slices.Min(found.Missing)))
	case *kind.AdditionalProperties:
		pointer.WriteString("/" + escaped(slices.Min(found.Properties)))
	}
	return pointer.String()
}

func describe(violation *jsonschema.ValidationError) error {
	pointer := pointerTo(violation)
	switch found := violation.ErrorKind.(type) {
	case *kind.Required:
		return Invalid(pointer, "is required")
	case *kind.AdditionalProperties:
		return Invalid(pointer, "is not a known field")
	case *kind.Type:
		return Invalid(pointer, "must be %s, not %s", strings.Join(found.Want, " or "), found.Got)
	case *kind.MinLength:
		return Invalid(pointer, "must not be empty")
	case *kind.Minimum, *kind.Maximum:
		return OutOfRange(pointer, "%s", found.LocalizedString(message.NewPrinter(language.English)))
	default:
		return Invalid(pointer, "%s", found.LocalizedString(message.NewPrinter(language.English)))
	}
}

// requireTags returns an error for a spec without one of these tags.
func requireTags(tags map[string]string, required ...string) error {
	for _, name := range required {
		if strings.TrimSpace(tags[name]) == "" {
			return Invalid("/"+tagsField+"/"+escaped(name), "the tag %s is required", name)
		}
	}
	return nil
}

// withDigest returns the tags of a new VM.
func (d decoded[Spec]) withDigest() map[string]string {
	tags := maps.Clone(d.tags)
	tags[SpecTag] = d.digest
	return tags
}
