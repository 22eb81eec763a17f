package main

import (
	"context"
	"fmt"
	"time"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/task"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// How often a running task is read: soon at first, and then less often.
const (
	firstPoll = 20 * time.Millisecond
	lastPoll  = 2 * time.Second
)

// run starts a task and returns its result. The task goes on when the context ends. Reading it needs no object of the
// session, so it survives the end of one.
func (v *vcenter) run(
	ctx context.Context, start func(context.Context, *vim25.Client) (*object.Task, error),
) (types.AnyType, error) {
	var ref types.ManagedObjectReference
	err := v.do(ctx, func(ctx context.Context, client *vim25.Client) error {
		started, err := start(ctx, client)
		if err != nil {
			return err
		}
		ref = started.Reference()
		return nil
	})
	if err != nil {
		return nil, err
	}
	for wait := firstPoll; ; wait = min(wait*2, lastPoll) {
		info, err := v.task(ctx, ref)
		if err != nil {
			return nil, begun(err, "tell how its task "+ref.Value+" ends")
		}
		switch info.State {
		case types.TaskInfoStateSuccess:
			return info.Result, nil
		case types.TaskInfoStateError:
			if info.Error == nil {
				return nil, fmt.Errorf("the task %s failed without an error", ref.Value)
			}
			return nil, task.Error{LocalizedMethodFault: info.Error, Description: info.Description}
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}

func (v *vcenter) task(ctx context.Context, ref types.ManagedObjectReference) (types.TaskInfo, error) {
	var read mo.Task
	err := v.do(ctx, func(ctx context.Context, client *vim25.Client) error {
		return property.DefaultCollector(client).RetrieveOne(ctx, ref, []string{"info"}, &read)
	})
	return read.Info, err
}
