// load LIBRARY FUNCTION: dlopens a library like an interpreter does an extension, and
// prints whether the driver was loaded by that, and what the function returns.
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	char *(*function)(void) = (char *(*)(void))dlsym(library, argv[2]);
	if (!function)
		return 3;
	printf("driver loaded: %d\n%s\n", driver != NULL, function());
	return 0;
}
