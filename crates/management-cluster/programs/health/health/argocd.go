package main

import (
	"errors"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// argocd runs a health check as Argo CD does: the script finds the object in `obj` and returns a table.
func argocd(script string) check {
	return func(object *unstructured.Unstructured) (health, error) {
		state := lua.NewState(lua.Options{SkipOpenLibs: true})
		defer state.Close()
		// Argo CD opens no other library, except for a safe part of `os`.
		for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
			state.Push(state.NewFunction(open))
			state.Push(lua.LString(name))
			state.Call(1, 0)
		}
		state.SetGlobal("obj", value(state, object.Object))
		if err := state.DoString(script); err != nil {
			return health{}, err
		}
		table, ok := state.Get(-1).(*lua.LTable)
		if !ok {
			return health{}, errors.New("the health check returns no table")
		}
		return health{
			Status:  lua.LVAsString(table.RawGetString("status")),
			Message: lua.LVAsString(table.RawGetString("message")),
		}, nil
	}
}

// value is a JSON value in Lua.
func value(state *lua.LState, json any) lua.LValue {
	switch json := json.(type) {
	case string:
		return lua.LString(json)
	case bool:
		return lua.LBool(json)
	case int64:
		return lua.LNumber(json)
	case float64:
		return lua.LNumber(json)
	case []any:
		table := state.NewTable()
		for _, item := range json {
			table.Append(value(state, item))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for name, field := range json {
			table.RawSetString(name, value(state, field))
		}
		return table
	default:
		return lua.LNil
	}
}
