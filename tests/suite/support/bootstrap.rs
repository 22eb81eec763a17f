//! A bootstrap provider without a controller.

/// A bootstrap provider's two kinds by Cluster API's contract. Every object is ready from the start, with the
/// bootstrap data of the case.
pub const KINDS: &str = r"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: standinbootstraps.bootstrap.cluster.x-k8s.io
  labels: {cluster.x-k8s.io/v1beta2: v1alpha1}
spec:
  group: bootstrap.cluster.x-k8s.io
  scope: Namespaced
  names:
    kind: StandInBootstrap
    listKind: StandInBootstrapList
    plural: standinbootstraps
    singular: standinbootstrap
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status:
            type: object
            x-kubernetes-preserve-unknown-fields: true
            default: {initialization: {dataSecretCreated: true}, dataSecretName: boot}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: standinbootstraptemplates.bootstrap.cluster.x-k8s.io
  labels: {cluster.x-k8s.io/v1beta2: v1alpha1}
spec:
  group: bootstrap.cluster.x-k8s.io
  scope: Namespaced
  names:
    kind: StandInBootstrapTemplate
    listKind: StandInBootstrapTemplateList
    plural: standinbootstraptemplates
    singular: standinbootstraptemplate
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, x-kubernetes-preserve-unknown-fields: true}
";
