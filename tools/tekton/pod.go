package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A termination message is cut as the kubelet cuts it.
const longestMessage = 4096

type pod struct {
	node   *nodeServer
	folder string
	ended  chan struct{}

	mu      sync.Mutex
	object  *core.Pod
	running map[string]*exec.Cmd
	stopped bool
	states  map[string]core.ContainerState
}

func newPod(n *nodeServer, object *core.Pod) *pod {
	return &pod{
		node: n, object: object, folder: filepath.Join(n.root, "pods", string(object.UID)), ended: make(chan struct{}),
		running: map[string]*exec.Cmd{}, states: map[string]core.ContainerState{},
	}
}

func (p *pod) current() *core.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.object
}

// update takes a newer object and refreshes the files that show its annotations.
func (p *pod) update(object *core.Pod) {
	p.mu.Lock()
	p.object = object
	p.mu.Unlock()
	for _, volume := range object.Spec.Volumes {
		if volume.DownwardAPI != nil {
			_ = p.downward(filepath.Join(p.folder, "volumes", volume.Name), volume.DownwardAPI.Items)
		}
	}
}

// stop ends every process of the pod; none is started afterwards.
func (p *pod) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	for _, command := range p.running {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
	}
}

func (p *pod) run(ctx context.Context) {
	defer close(p.ended)
	object := p.current()
	if object.Spec.ActiveDeadlineSeconds != nil {
		timer := time.AfterFunc(time.Duration(*object.Spec.ActiveDeadlineSeconds)*time.Second, p.stop)
		defer timer.Stop()
	}
	if err := p.volumes(ctx); err != nil {
		p.report(ctx, core.PodFailed, err.Error())
		return
	}
	for _, container := range object.Spec.InitContainers {
		if p.container(ctx, container) != 0 {
			p.report(ctx, core.PodFailed, "the init container "+container.Name+" failed")
			return
		}
	}
	var group sync.WaitGroup
	codes := make([]int, len(object.Spec.Containers))
	for index, container := range object.Spec.Containers {
		group.Add(1)
		go func() {
			defer group.Done()
			codes[index] = p.container(ctx, container)
		}()
	}
	group.Wait()
	phase := core.PodSucceeded
	for _, code := range codes {
		if code != 0 {
			phase = core.PodFailed
		}
	}
	p.report(ctx, phase, "")
}

// container runs one container to its end and returns its exit code.
func (p *pod) container(ctx context.Context, container core.Container) int {
	started := meta.Now()
	fail := func(reason, message string) int {
		p.state(ctx, container.Name, core.ContainerState{Terminated: &core.ContainerStateTerminated{
			ExitCode: 128, Reason: reason, Message: message, StartedAt: started, FinishedAt: meta.Now(),
		}})
		return 128
	}
	folder := filepath.Join(p.folder, "containers", container.Name)
	box, err := p.box(ctx, container, folder)
	if err != nil {
		return fail("CreateContainerConfigError", err.Error())
	}
	text, _ := json.Marshal(box)
	output, err := os.OpenFile(filepath.Join(folder, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fail("CreateContainerError", err.Error())
	}
	defer output.Close()
	command := exec.Command("/proc/self/exe", "sandbox")
	command.Stdin = strings.NewReader(string(text))
	command.Stdout, command.Stderr = output, output
	command.Env = box.Env
	attributes := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	command.SysProcAttr = attributes
	done := make(chan int, 1)
	begun := make(chan error, 1)
	// The death signal belongs to the thread that starts the process, so it must not go away.
	go func() {
		lockThread()
		p.mu.Lock()
		if p.stopped {
			p.mu.Unlock()
			begun <- fmt.Errorf("the pod was deleted")
			return
		}
		err := command.Start()
		if err == nil {
			p.running[container.Name] = command
		}
		p.mu.Unlock()
		begun <- err
		if err == nil {
			_ = command.Wait()
			done <- exitCode(command.ProcessState)
		}
	}()
	if err := <-begun; err != nil {
		return fail("CreateContainerError", err.Error())
	}
	p.state(ctx, container.Name, core.ContainerState{Running: &core.ContainerStateRunning{StartedAt: started}})
	code := <-done
	p.mu.Lock()
	delete(p.running, container.Name)
	p.mu.Unlock()
	message, _ := os.ReadFile(box.Message)
	if len(message) > longestMessage {
		message = message[:longestMessage]
	}
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	p.state(ctx, container.Name, core.ContainerState{Terminated: &core.ContainerStateTerminated{
		ExitCode: int32(code), Reason: reason, Message: string(message), StartedAt: started, FinishedAt: meta.Now(),
		ContainerID: "process://" + container.Name,
	}})
	return code
}

func exitCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

func (p *pod) state(ctx context.Context, name string, state core.ContainerState) {
	p.mu.Lock()
	p.states[name] = state
	p.mu.Unlock()
	p.report(ctx, "", "")
}

// report writes the status as it is now; an empty phase means that the pod goes on.
func (p *pod) report(ctx context.Context, phase core.PodPhase, message string) {
	p.mu.Lock()
	object := p.object
	started := false
	statuses := func(containers []core.Container, steps bool) []core.ContainerStatus {
		list := []core.ContainerStatus{}
		for _, container := range containers {
			state, known := p.states[container.Name]
			if !known {
				state = core.ContainerState{Waiting: &core.ContainerStateWaiting{Reason: "PodInitializing"}}
			}
			started = started || (steps && known)
			runs := state.Running != nil
			list = append(list, core.ContainerStatus{
				Name: container.Name, Image: container.Image, ImageID: "process://machine", ContainerID: "process://" + container.Name,
				State: state, Ready: runs || (!steps && state.Terminated != nil), Started: &runs,
			})
		}
		return list
	}
	inits := statuses(object.Spec.InitContainers, false)
	mains := statuses(object.Spec.Containers, true)
	p.mu.Unlock()
	if phase == "" {
		phase = core.PodPending
		if started {
			phase = core.PodRunning
		}
	}
	now := meta.Now()
	condition := func(kind core.PodConditionType, is bool) core.PodCondition {
		status := core.ConditionFalse
		if is {
			status = core.ConditionTrue
		}
		return core.PodCondition{Type: kind, Status: status, LastTransitionTime: now}
	}
	running := phase == core.PodRunning
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": object.UID}, "status": map[string]any{
		"phase": phase, "message": message, "hostIP": "127.0.0.1", "podIP": "127.0.0.1", "startTime": object.CreationTimestamp,
		"initContainerStatuses": inits, "containerStatuses": mains,
		"conditions": []core.PodCondition{
			condition(core.PodScheduled, true), condition(core.PodInitialized, phase != core.PodPending),
			condition(core.ContainersReady, running), condition(core.PodReady, running),
		},
	}})
	_, err := p.node.client.CoreV1().Pods(object.Namespace).Patch(ctx, object.Name, types.MergePatchType, patch, meta.PatchOptions{}, "status")
	if err != nil {
		log.Printf("pod %s/%s: %v", object.Namespace, object.Name, err)
	}
}
