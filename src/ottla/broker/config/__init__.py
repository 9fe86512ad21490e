"""The configuration: what each property is, its values and layers, and the resources that have one."""
