package main

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// message is a message of cmi.proto as it goes over the wire. All that is used of them are texts, bytes and
// maps of these, for which generated code would be many times as long.
type message struct {
	raw []byte
}

// fields are what a message holds, by number.
type fields map[protowire.Number][][]byte

func (m *message) bytes(number int, value []byte) {
	m.raw = protowire.AppendTag(m.raw, protowire.Number(number), protowire.BytesType)
	m.raw = protowire.AppendBytes(m.raw, value)
}

func (m *message) text(number int, value string) {
	m.bytes(number, []byte(value))
}

func (m *message) fields() (fields, error) {
	read := fields{}
	for rest := m.raw; len(rest) > 0; {
		number, kind, length := protowire.ConsumeTag(rest)
		if length < 0 {
			return nil, protowire.ParseError(length)
		}
		if kind != protowire.BytesType {
			return nil, fmt.Errorf("field %d of an answer is neither a text nor a map", number)
		}
		rest = rest[length:]
		value, length := protowire.ConsumeBytes(rest)
		if length < 0 {
			return nil, protowire.ParseError(length)
		}
		read[number] = append(read[number], value)
		rest = rest[length:]
	}
	return read, nil
}

func (f fields) text(number protowire.Number) string {
	values := f[number]
	if len(values) == 0 {
		return ""
	}
	return string(values[len(values)-1])
}

func (f fields) texts(number protowire.Number) (map[string]string, error) {
	all := map[string]string{}
	for _, value := range f[number] {
		entry, err := (&message{raw: value}).fields()
		if err != nil {
			return nil, err
		}
		all[entry.text(1)] = entry.text(2)
	}
	return all, nil
}

// encoded is the codec of messages that are encoded already.
type encoded struct{}

func (encoded) Name() string { return "proto" }

func (encoded) Marshal(value any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(value.(*message).raw)}, nil
}

func (encoded) Unmarshal(data mem.BufferSlice, value any) error {
	value.(*message).raw = data.Materialize()
	return nil
}
