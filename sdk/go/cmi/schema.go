package cmi

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	infer "github.com/google/jsonschema-go/jsonschema"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Fields of the provider spec that belong to the caller.
const (
	tagsField      = "tags"
	zoneField      = "failureDomain"
	addressesField = "networkAddresses"
)

// schemas are the JSON Schemas of a provider spec, derived from its type.
type schemas struct {
	// published is the whole schema.
	published []byte
	// required are the JSON names of the fields that every spec has.
	required []string
	// types checks names and types alone: a VM must be found and deleted when its size no longer exists.
	types *jsonschema.Schema
	// values checks the allowed values, too.
	values *jsonschema.Schema
	// hot are the JSON pointers of the fields that Update changes.
	hot []string
}

// Schema returns the JSON Schema of a provider spec, as the driver publishes it.
func Schema[Spec any]() (json.RawMessage, error) {
	made, err := schemasFor(reflect.TypeFor[Spec]())
	if err != nil {
		return nil, err
	}
	return made.published, nil
}

type node = map[string]any

func schemasFor(spec reflect.Type) (*schemas, error) {
	made := &schemas{}
	root, err := made.derive(spec)
	if err != nil {
		return nil, err
	}
	properties, _ := root["properties"].(node)
	if properties == nil {
		properties = node{}
		root["properties"] = properties
	}
	if properties[tagsField] != nil {
		return nil, fmt.Errorf("%s has the field %q, which this package reads; remove it", spec, tagsField)
	}
	properties[tagsField] = node{"type": "object", "additionalProperties": node{"type": "string"}}
	required, _ := root["required"].([]any)
	if slices.Contains(required, any(addressesField)) {
		return nil, fmt.Errorf("the field %q of %s must be optional: only some machines have static addresses", addressesField, spec)
	}
	for _, name := range required {
		made.required = append(made.required, fmt.Sprint(name))
	}
	if made.published, err = json.Marshal(root); err != nil {
		return nil, err
	}
	if made.values, err = compile(root); err != nil {
		return nil, err
	}
	made.types, err = compile(withoutValues(root).(node))
	return made, err
}

func (s *schemas) derive(spec reflect.Type) (node, error) {
	if spec == reflect.TypeFor[OpenSpec]() {
		return node{"type": "object"}, nil
	}
	if spec.Kind() != reflect.Struct {
		return nil, fmt.Errorf("the provider spec is a %s: it must be a struct or an OpenSpec", spec)
	}
	inferred, err := infer.ForType(spec, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot derive a JSON Schema from %s: %w", spec, err)
	}
	root, err := generic(inferred)
	if err != nil {
		return nil, err
	}
	return root, s.refine("", spec, root)
}

func generic(schema *infer.Schema) (node, error) {
	text, err := json.Marshal(schema)
	if err != nil {
		return nil, err
	}
	var root node
	return root, json.Unmarshal(text, &root)
}

func compile(root node) (*jsonschema.Schema, error) {
	const name = "spec.json"
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(name, root); err != nil {
		return nil, err
	}
	return compiler.Compile(name)
}

// refine walks a type and its schema: null is never a value, a required text is not empty, and the tags `cmi` of the
// fields add allowed values.
func (s *schemas) refine(pointer string, of reflect.Type, schema node) error {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	withoutNull(schema)
	switch of.Kind() {
	case reflect.Struct:
		return s.refineFields(pointer, of, schema)
	case reflect.Slice, reflect.Array:
		if items, ok := schema["items"].(node); ok {
			return s.refine(pointer+"/*", of.Elem(), items)
		}
	case reflect.Map:
		if values, ok := schema["additionalProperties"].(node); ok {
			return s.refine(pointer+"/*", of.Elem(), values)
		}
	}
	return nil
}

func (s *schemas) refineFields(pointer string, of reflect.Type, schema node) error {
	properties, _ := schema["properties"].(node)
	required, _ := schema["required"].([]any)
	for _, field := range reflect.VisibleFields(of) {
		name := jsonName(field)
		property, ok := properties[name].(node)
		if !ok || field.Anonymous {
			continue
		}
		place := pointer + "/" + escaped(name)
		if err := s.refine(place, field.Type, property); err != nil {
			return err
		}
		if property["type"] == "string" && slices.Contains(required, any(name)) {
			property["minLength"] = 1
		}
		if err := s.constrain(place, field.Tag.Get("cmi"), property); err != nil {
			return fmt.Errorf("the field %s of %s: %w", field.Name, of, err)
		}
	}
	return nil
}

// constrain reads a tag such as `cmi:"enum=small|large,hot"` or `cmi:"min=10,max=100"`.
func (s *schemas) constrain(pointer, tag string, property node) error {
	for option := range strings.SplitSeq(tag, ",") {
		key, value, _ := strings.Cut(option, "=")
		switch key {
		case "":
		case "hot":
			if strings.Contains(pointer, "*") {
				return fmt.Errorf("`hot` within a list or a map: put it at the list or the map")
			}
			s.hot = append(s.hot, pointer)
		case "enum":
			property["enum"] = texts(strings.Split(value, "|"))
		case "min", "max":
			number, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return fmt.Errorf("the tag %q needs a number: %w", option, err)
			}
			property[key+"imum"] = number
		default:
			return fmt.Errorf("the tag cmi has the unknown option %q; known are enum, min, max and hot", key)
		}
	}
	return nil
}

func texts(values []string) []any {
	all := make([]any, len(values))
	for i, value := range values {
		all[i] = value
	}
	return all
}

func withoutNull(schema node) {
	types, ok := schema["type"].([]any)
	if !ok {
		return
	}
	types = slices.DeleteFunc(slices.Clone(types), func(name any) bool { return name == "null" })
	if len(types) == 1 {
		schema["type"] = types[0]
	}
}

// withoutValues copies a schema and keeps names and types alone.
func withoutValues(schema any) any {
	switch schema := schema.(type) {
	case node:
		kept := maps.Clone(schema)
		for _, keyword := range []string{"enum", "minimum", "maximum"} {
			// A property may have such a name. Its schema is an object.
			if _, isProperty := kept[keyword].(node); !isProperty {
				delete(kept, keyword)
			}
		}
		for key, value := range kept {
			kept[key] = withoutValues(value)
		}
		return kept
	default:
		return schema
	}
}

func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	if name == "" {
		return field.Name
	}
	return name
}

func escaped(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
