package cmi

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
)

type testSpec struct {
	Size   string            `json:"size" cmi:"enum=small|large"`
	DiskGB uint16            `json:"diskGB,omitempty" cmi:"min=10,max=1000"`
	Labels map[string]string `json:"labels,omitempty" cmi:"hot"`
	Nets   []struct {
		Name string `json:"name"`
	} `json:"nets,omitempty"`
	Zone *string `json:"zone,omitempty"`
}

func (s *testSpec) SetDefaults() { s.DiskGB = 10 }

func (s *testSpec) Validate() error {
	if s.Size == "small" && s.DiskGB > 100 {
		return OutOfRange("/diskGB", "is %d; a small VM has at most 100", s.DiskGB)
	}
	return nil
}

func testSpecs(t *testing.T) specs[testSpec] {
	t.Helper()
	made, err := newSpecs[testSpec]()
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestOpenSpecHasEveryFieldButTheTags(t *testing.T) {
	specs, err := newSpecs[OpenSpec]()
	if err != nil {
		t.Fatal(err)
	}
	read, err := specs.decodeNew([]byte(`{"big": 12345678901234567890, "nets": [{"b": 1, "a": null}], "tags": {"team": "a"}}`))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(read.spec)
	if err != nil || string(text) != `{"big":12345678901234567890,"nets":[{"a":null,"b":1}]}` || read.tags["team"] != "a" {
		t.Errorf("got %s with the tags %v, %v", text, read.tags, err)
	}
	if _, err := specs.decode([]byte(`{"tags": {"team": 7}}`)); err == nil || !strings.Contains(err.Error(), "/tags/team") {
		t.Errorf("a tag that is no text: %v", err)
	}
}

// DRV-04, CMI-30, CMI-48: a misread spec would make the wrong VM.
func TestSpecIsDecodedStrictly(t *testing.T) {
	specs := testSpecs(t)
	for text, message := range map[string]string{
		``:                                   "is not JSON",
		`[]`:                                 "is not a JSON object",
		`null`:                               "is not a JSON object",
		`{"size": "small"} {}`:               "is not JSON",
		"{\"size\": \"\xff\"}":               "is not UTF-8",
		`{}`:                                 "/size: is required",
		`{"Size": "small"}`:                  "/Size: is not a known field",
		`{"sizze": "small"}`:                 "/sizze: is not a known field",
		`{"size": ""}`:                       "/size: must not be empty",
		`{"size": null}`:                     "/size: must be string, not null",
		`{"size": 7}`:                        "/size: must be string, not number",
		`{"size": "small", "a/b~c": 1}`:      "/a~1b~0c: is not a known field",
		`{"size": "small", "diskGB": "20"}`:  "/diskGB: must be integer, not string",
		`{"size": "small", "diskGB": -1}`:    "/diskGB: must be uint16, not number -1",
		`{"size": "small", "diskGB": 1e9}`:   "/diskGB: must be uint16",
		`{"size": "small", "labels": null}`:  "/labels: must be object, not null",
		`{"size": "small", "nets": [{}]}`:    "/nets/0/name: is required",
		`{"size": "small", "zone": null}`:    "/zone: must be string, not null",
		`{"size": "a", "tags": {"a": null}}`: "/tags/a: must be string, not null",
		`{"size": "a", "tags": "a"}`:         "/tags: must be object, not string",
	} {
		_, err := specs.decode([]byte(text))
		wantCode(t, text, err, codes.InvalidArgument, message)
	}
}

// A VM must be found and deleted when its size no longer exists.
func TestValuesAreCheckedForNewSpecsOnly(t *testing.T) {
	specs := testSpecs(t)
	for text, want := range map[string]struct {
		code    codes.Code
		message string
	}{
		`{"size": "huge"}`:                   {codes.InvalidArgument, "/size: value must be one of"},
		`{"size": "large", "diskGB": 9}`:     {codes.OutOfRange, "/diskGB: minimum: got 9, want 10"},
		`{"size": "large", "diskGB": 2000}`:  {codes.OutOfRange, "/diskGB: maximum"},
		`{"size": "small", "diskGB": 500}`:   {codes.OutOfRange, "a small VM has at most 100"},
		`{"size": "small", "diskGB": 70000}`: {codes.InvalidArgument, "/diskGB: must be uint16"},
	} {
		if want.code == codes.OutOfRange || strings.Contains(text, "huge") {
			if _, err := specs.decode([]byte(text)); err != nil {
				t.Errorf("%s: a look-up was refused: %v", text, err)
			}
		}
		_, err := specs.decodeNew([]byte(text))
		wantCode(t, text, err, want.code, want.message)
	}
}

func wantCode(t *testing.T, what string, err error, code codes.Code, message string) {
	t.Helper()
	var known *Error
	if !errors.As(err, &known) || known.code != code || !strings.Contains(known.message, message) {
		t.Errorf("%s: got %v, want %s with %q", what, err, code, message)
	}
}

func TestStaticAddressesAreAnOptionalField(t *testing.T) {
	type addressed struct {
		Addresses []StaticAddress `json:"networkAddresses,omitempty"`
	}
	specs, err := newSpecs[addressed]()
	if err != nil || !specs.has(addressesField) {
		t.Fatalf("got %v", err)
	}
	text := `{"networkAddresses": [{"address": "10.0.0.2", "prefix": 24, "pool": {"apiGroup": "g", "kind": "P", "name": "n"}}]}`
	read, err := specs.decodeNew([]byte(text))
	if err != nil || len(read.spec.Addresses) != 1 || read.spec.Addresses[0].Pool.Kind != "P" {
		t.Errorf("got %+v, %v", read, err)
	}
	type always struct {
		Addresses []StaticAddress `json:"networkAddresses"`
	}
	if _, err := newSpecs[always](); err == nil || !strings.Contains(err.Error(), "must be optional") {
		t.Errorf("got %v", err)
	}
}

func TestSpecGetsDefaultsAndTags(t *testing.T) {
	read, err := testSpecs(t).decodeNew([]byte(`{"size": "small", "tags": {"team": "a"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if read.spec.DiskGB != 10 || read.tags["team"] != "a" {
		t.Errorf("got %+v", read)
	}
}

// CAP-27: a VM that differs in hot fields, tags or white space alone is adopted.
func TestDigestIgnoresHotFieldsAndTags(t *testing.T) {
	specs := testSpecs(t)
	digest := func(text string) string {
		read, err := specs.decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return read.digest
	}
	first := digest(`{"size":"small","diskGB":20}`)
	for _, same := range []string{
		`{"diskGB": 20, "size": "small"}`, `{"size":"small","diskGB":20,"labels":{"a":"b"},"tags":{"c":"d"}}`,
	} {
		if digest(same) != first {
			t.Errorf("%s has another digest", same)
		}
	}
	if digest(`{"size":"small","diskGB":30}`) == first {
		t.Error("another disk has the same digest")
	}
}

func TestSchemaHasTheUsersFieldsAndNoNull(t *testing.T) {
	text, err := Schema[testSpec]()
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Required             []string
		AdditionalProperties bool
		Properties           map[string]struct {
			Type             any
			Enum             []string
			Minimum, Maximum *float64
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	for name, field := range schema.Properties {
		if _, single := field.Type.(string); !single {
			t.Errorf("%s has the types %v", name, field.Type)
		}
	}
	disk := schema.Properties["diskGB"]
	if len(schema.Required) != 1 || len(schema.Properties["size"].Enum) != 2 || *disk.Minimum != 10 || *disk.Maximum != 1000 {
		t.Errorf("got %s", text)
	}
}

// A mistake of the author ends the driver at its start.
func TestUnusableSpecTypesAreRefused(t *testing.T) {
	for want, derive := range map[string]func() (json.RawMessage, error){
		"must be a struct": Schema[string],
		`unknown option "hott"`: Schema[struct {
			A string `cmi:"hott"`
		}],
		"needs a number": Schema[struct {
			A int `cmi:"min=few"`
		}],
		`the field "tags"`: Schema[struct {
			Tags map[string]string `json:"tags"`
		}],
		"within a list or a map": Schema[struct {
			A []struct {
				B int `cmi:"hot"`
			}
		}],
		"cannot derive a JSON": Schema[struct{ A func() }],
	} {
		if _, err := derive(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
