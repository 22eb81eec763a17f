package main

import (
	"errors"
	"testing"
	"time"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/task"
	"github.com/vmware/govmomi/vim25/types"
)

var (
	oneTask = types.ManagedObjectReference{Type: "Task", Value: "task-1"}
	begin   = time.Now()
	earlier = clone{oneTask, begin.Add(-time.Second)}
	later   = clone{oneTask, begin.Add(time.Second)}
)

// started starts the task that makes the VM "one".
func started(t *testing.T, known *clones, answer error) {
	t.Helper()
	_, err := known.start("one", func() (*object.Task, error) { return object.NewTask(nil, oneTask), answer })
	if !errors.Is(err, answer) {
		t.Fatal(err)
	}
}

// mayMake fails unless the answer for a VM is the wanted one.
func mayMake(t *testing.T, known *clones, instance string, want bool, running ...clone) {
	t.Helper()
	got, err := known.mayMake(instance, begin, func() ([]clone, error) { return running, nil })
	must(t, err)
	if got != want {
		t.Errorf("%s: got %v", instance, got)
	}
}

func TestTaskOfAnEarlierProcessMayMakeEveryVM(t *testing.T) {
	mayMake(t, newClones(), "one", true, earlier)
	mayMake(t, newClones(), "one", false, later) // another process that lives waits for it
}

func TestKnownTaskMakesItsVMOnly(t *testing.T) {
	known := newClones()
	started(t, known, nil)
	mayMake(t, known, "one", true, later)
	mayMake(t, known, "two", false, later)
	mayMake(t, known, "two", false) // it has ended
	if len(known.known)+len(known.unanswered) > 0 {
		t.Errorf("%+v is kept", known)
	}
}

func TestRequestWithoutAnAnswerMayHaveATask(t *testing.T) {
	known := newClones()
	started(t, known, errors.New("the connection is lost"))
	mayMake(t, known, "two", false, later)
	mayMake(t, known, "one", true, later)
	mayMake(t, known, "one", false)
	refusal := types.LocalizedMethodFault{Fault: &types.NoPermission{}}
	started(t, known, task.Error{LocalizedMethodFault: &refusal})
	mayMake(t, known, "one", false, later)
}

func TestTaskThatStartsWhileOthersAreReadIsNotForgotten(t *testing.T) {
	known := newClones()
	_, err := known.mayMake("two", begin, func() ([]clone, error) {
		started(t, known, nil)
		return nil, nil
	})
	must(t, err)
	mayMake(t, known, "one", true, later)
}
