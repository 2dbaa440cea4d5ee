/* Where the static program looks names up: in the machine's files and by DNS, nowhere else.
 *
 * Both are part of the program. Whatever else /etc/nsswitch.conf may name (myhostname, resolve, mdns, sss) is a
 * library of the machine, which a static program would load together with the machine's own C library: two versions
 * of it in one process, and it dies of that. A program that is not static looks names up as the machine says. */
#include <sys/auxv.h>

/* Of glibc, but in none of its headers. */
extern int __nss_configure_lookup(const char *database, const char *services);

__attribute__((constructor)) static void look_names_up_here(void) {
  /* Where the loader is; a static program has none. */
  if (getauxval(AT_BASE) != 0) return;
  __nss_configure_lookup("hosts", "files dns");
  __nss_configure_lookup("passwd", "files");
  __nss_configure_lookup("group", "files");
  __nss_configure_lookup("services", "files");
}
