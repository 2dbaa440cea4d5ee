package main

import (
	"context"
	"flag"
	"log"
	"os"
	"path/filepath"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
	"knative.dev/pkg/signals"
)

// nodeServer is a node whose containers are plain processes of this machine, each in a mount
// namespace with the pod's volumes where they belong. Images are not used: every container sees
// the programs of the machine and, in /ko-app, those of Tekton's images. It also answers claims
// for volumes with folders.
type nodeServer struct {
	client   kubernetes.Interface
	name     string
	root     string
	programs string

	mu   sync.Mutex
	pods map[string]*pod // by uid
}

func node() {
	kubeconfig := flag.String("kubeconfig", "", "the cluster")
	name := flag.String("name", "steps", "the name of the node")
	root := flag.String("root", "", "where volumes and logs go")
	programs := flag.String("programs", "", "the folder with Tekton's own programs")
	port := flag.Int("port", 10250, "where logs are served on loopback")
	certificate := flag.String("tls-certificate", "", "certificate file")
	key := flag.String("tls-key", "", "key file")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	fatal(err)
	config.QPS, config.Burst = 500, 1000
	client, err := kubernetes.NewForConfig(config)
	fatal(err)
	folder, err := filepath.Abs(*root)
	fatal(err)
	fatal(os.MkdirAll(folder, 0o755))

	ctx := signals.NewContext()
	n := &nodeServer{client: client, name: *name, root: folder, programs: *programs, pods: map[string]*pod{}}
	go n.serveLogs(*port, *certificate, *key)
	fatal(n.register(ctx, int32(*port)))
	go n.renew(ctx)
	go n.provide(ctx)
	n.watch(ctx)
}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func (n *nodeServer) register(ctx context.Context, port int32) error {
	object := &core.Node{ObjectMeta: meta.ObjectMeta{Name: n.name, Labels: map[string]string{
		"kubernetes.io/hostname": n.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
	}}}
	if _, err := n.client.CoreV1().Nodes().Create(ctx, object, meta.CreateOptions{}); err != nil && !errors.IsAlreadyExists(err) {
		return err
	}
	room := core.ResourceList{
		core.ResourceCPU: resource.MustParse("1000"), core.ResourceMemory: resource.MustParse("1000Gi"),
		core.ResourcePods: resource.MustParse("2000"), core.ResourceEphemeralStorage: resource.MustParse("1000Gi"),
	}
	now := meta.Now()
	status := core.NodeStatus{
		Capacity: room, Allocatable: room,
		Conditions:      []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue, Reason: "Ready", LastHeartbeatTime: now, LastTransitionTime: now}},
		Addresses:       []core.NodeAddress{{Type: core.NodeInternalIP, Address: "127.0.0.1"}, {Type: core.NodeHostName, Address: n.name}},
		DaemonEndpoints: core.NodeDaemonEndpoints{KubeletEndpoint: core.DaemonEndpoint{Port: port}},
	}
	// The cluster's own controllers write to a new node as well.
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		found, err := n.client.CoreV1().Nodes().Get(ctx, n.name, meta.GetOptions{})
		if err != nil {
			return err
		}
		found.Status = status
		_, err = n.client.CoreV1().Nodes().UpdateStatus(ctx, found, meta.UpdateOptions{})
		return err
	})
}

// renew keeps the lease without which the node would be tainted within a minute.
func (n *nodeServer) renew(ctx context.Context) {
	leases := n.client.CoordinationV1().Leases("kube-node-lease")
	seconds := int32(40)
	for ctx.Err() == nil {
		now := meta.NewMicroTime(time.Now())
		spec := coordination.LeaseSpec{HolderIdentity: &n.name, LeaseDurationSeconds: &seconds, RenewTime: &now}
		lease, err := leases.Get(ctx, n.name, meta.GetOptions{})
		if errors.IsNotFound(err) {
			lease = &coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: n.name}, Spec: spec}
			_, err = leases.Create(ctx, lease, meta.CreateOptions{})
		} else if err == nil {
			lease.Spec = spec
			_, err = leases.Update(ctx, lease, meta.UpdateOptions{})
		}
		if err != nil {
			log.Printf("renew the lease: %v", err)
		}
		time.Sleep(10 * time.Second)
	}
}

func (n *nodeServer) watch(ctx context.Context) {
	mine := fields.OneTermEqualSelector("spec.nodeName", n.name)
	source := cache.NewListWatchFromClient(n.client.CoreV1().RESTClient(), "pods", core.NamespaceAll, mine)
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source,
		ObjectType:    &core.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { n.seen(ctx, object.(*core.Pod)) },
			UpdateFunc: func(_, object any) { n.seen(ctx, object.(*core.Pod)) },
			DeleteFunc: func(object any) {
				if gone, ok := object.(*core.Pod); ok {
					n.gone(gone)
				}
			},
		},
	})
	informer.Run(ctx.Done())
}

func (n *nodeServer) seen(ctx context.Context, object *core.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	uid := string(object.UID)
	p := n.pods[uid]
	if p == nil {
		if object.Status.Phase == core.PodSucceeded || object.Status.Phase == core.PodFailed {
			if object.DeletionTimestamp != nil {
				go n.remove(ctx, object)
			}
			return
		}
		p = newPod(n, object)
		n.pods[uid] = p
		go p.run(ctx)
	}
	p.update(object)
	if object.DeletionTimestamp != nil {
		p.stop()
		go func() {
			<-p.ended
			n.remove(ctx, object)
		}()
	}
}

func (n *nodeServer) remove(ctx context.Context, object *core.Pod) {
	now := int64(0)
	options := meta.DeleteOptions{GracePeriodSeconds: &now, Preconditions: meta.NewUIDPreconditions(string(object.UID))}
	_ = n.client.CoreV1().Pods(object.Namespace).Delete(ctx, object.Name, options)
}

func (n *nodeServer) gone(object *core.Pod) {
	n.mu.Lock()
	p := n.pods[string(object.UID)]
	delete(n.pods, string(object.UID))
	n.mu.Unlock()
	if p != nil {
		p.stop()
		go func() {
			<-p.ended
			_ = os.RemoveAll(p.folder)
		}()
	}
}

func (n *nodeServer) find(namespace, name string) *pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.pods {
		if object := p.current(); object.Namespace == namespace && object.Name == name {
			return p
		}
	}
	return nil
}

// provide answers each claim for a volume with a folder of the machine.
func (n *nodeServer) provide(ctx context.Context) {
	source := cache.NewListWatchFromClient(n.client.CoreV1().RESTClient(), "persistentvolumeclaims", core.NamespaceAll, fields.Everything())
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source,
		ObjectType:    &core.PersistentVolumeClaim{},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
			claim := object.(*core.PersistentVolumeClaim)
			if claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil {
				return
			}
			folder := filepath.Join(n.root, "claims", string(claim.UID))
			if err := os.MkdirAll(folder, 0o777); err != nil {
				log.Printf("claim %s: %v", claim.Name, err)
				return
			}
			class := ""
			if claim.Spec.StorageClassName != nil {
				class = *claim.Spec.StorageClassName
			}
			volume := &core.PersistentVolume{
				ObjectMeta: meta.ObjectMeta{Name: "steps-" + string(claim.UID)},
				Spec: core.PersistentVolumeSpec{
					Capacity:                      claim.Spec.Resources.Requests,
					AccessModes:                   claim.Spec.AccessModes,
					StorageClassName:              class,
					PersistentVolumeReclaimPolicy: core.PersistentVolumeReclaimRetain,
					ClaimRef:                      &core.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
					PersistentVolumeSource:        core.PersistentVolumeSource{HostPath: &core.HostPathVolumeSource{Path: folder}},
				},
			}
			if _, err := n.client.CoreV1().PersistentVolumes().Create(ctx, volume, meta.CreateOptions{}); err != nil && !errors.IsAlreadyExists(err) {
				log.Printf("claim %s: %v", claim.Name, err)
			}
		}},
	})
	informer.Run(ctx.Done())
}
