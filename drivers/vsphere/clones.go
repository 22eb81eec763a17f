package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// cloneTask begins the description of a task that clones a VM.
const cloneTask = "VirtualMachine.clone"

// clone is a running task that clones a VM. It does not name the VM that it makes.
type clone struct {
	task   types.ManagedObjectReference
	queued time.Time
}

// clones are the clone tasks that this process has started.
type clones struct {
	mutex sync.Mutex
	// known has the instance UUIDs of the VMs that the tasks make.
	known map[types.ManagedObjectReference]string
	// unanswered has the instance UUIDs of the VMs whose requests may have started a task that is not known.
	unanswered map[string]bool
}

func newClones() *clones {
	return &clones{known: map[types.ManagedObjectReference]string{}, unanswered: map[string]bool{}}
}

// start sends the request for the task that makes the VM with an instance UUID.
func (c *clones) start(instance string, send func() (*object.Task, error)) (*object.Task, error) {
	c.note(instance)
	started, err := send()
	switch {
	case err == nil:
		c.mutex.Lock()
		defer c.mutex.Unlock()
		c.known[started.Reference()] = instance
		delete(c.unanswered, instance)
	case reason(err) == "": // not a refusal by vCenter
		c.note(instance)
	default:
		c.forget(instance)
	}
	return started, err
}

func (c *clones) note(instance string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.unanswered[instance] = true
}

func (c *clones) forget(instance string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.unanswered, instance)
}

// mayMake says whether a running task may make the VM with an instance UUID. Each task may that was queued before the
// first session of this process: an earlier process may have started it.
func (c *clones) mayMake(instance string, first time.Time, read func() ([]clone, error)) (bool, error) {
	c.mutex.Lock()
	before := slices.Collect(maps.Keys(c.known))
	c.mutex.Unlock()
	running, err := read()
	if err != nil {
		return false, err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, task := range before {
		if !slices.ContainsFunc(running, func(found clone) bool { return found.task == task }) {
			delete(c.known, task) // it has ended
		}
	}
	mayMake := slices.ContainsFunc(running, func(found clone) bool {
		if made, known := c.known[found.task]; known {
			return made == instance
		}
		return found.queued.Before(first) || c.unanswered[instance]
	})
	if !mayMake {
		delete(c.unanswered, instance)
	}
	return mayMake, nil
}

// cloned returns an error while a clone of the spec's template may make the VM of a machine: its caller was cut off, or
// its process ended.
func (b *backend) cloned(ctx context.Context, client *vim25.Client, v *vcenter, id cmi.Identity, s spec) error {
	where, err := b.placement(s)
	if err != nil || where.Datacenter == "" || where.Template == "" {
		return nil
	}
	template, err := find(ctx, client, where.path(vmFolder, where.Template))
	if err != nil || template == nil {
		return err
	}
	first := v.first.Load()
	mayMake, err := v.clones.mayMake(instanceID(id.Cluster, id.Name), first.LoginTime, func() ([]clone, error) {
		return clonesOf(ctx, client, *template, first.UserName)
	})
	if err == nil && mayMake {
		err = cmi.Busy("vCenter is cloning the template %s, maybe for %s", where.Template, id.Name)
	}
	return err
}

// clonesOf returns a user's tasks that clone a template and have not ended.
func clonesOf(
	ctx context.Context, client *vim25.Client, template types.ManagedObjectReference, user string,
) ([]clone, error) {
	manager := *client.ServiceContent.TaskManager
	recent := types.PropertyFilterSpec{
		ObjectSet: []types.ObjectSpec{{
			Obj: manager, Skip: types.NewBool(true),
			SelectSet: []types.BaseSelectionSpec{&types.TraversalSpec{Type: manager.Type, Path: "recentTask"}},
		}},
		PropSet: []types.PropertySpec{{
			Type: "Task", PathSet: []string{"info.state", "info.descriptionId", "info.entity", "info.reason", "info.queueTime"},
		}},
	}
	read, err := property.DefaultCollector(client).RetrieveProperties(
		ctx, types.RetrieveProperties{SpecSet: []types.PropertyFilterSpec{recent}})
	if err != nil {
		return nil, err
	}
	var tasks []mo.Task
	if err := mo.LoadObjectContent(read.Returnval, &tasks); err != nil {
		return nil, err
	}
	var running []clone
	for _, task := range tasks {
		by, byUser := task.Info.Reason.(*types.TaskReasonUser)
		isRunning := task.Info.State == types.TaskInfoStateQueued || task.Info.State == types.TaskInfoStateRunning
		isClone := strings.HasPrefix(task.Info.DescriptionId, cloneTask) &&
			task.Info.Entity != nil && *task.Info.Entity == template
		if isRunning && isClone && byUser && strings.EqualFold(by.UserName, user) {
			running = append(running, clone{task.Self, task.Info.QueueTime})
		}
	}
	return running, nil
}
